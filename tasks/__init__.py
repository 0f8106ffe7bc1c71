"""The workloads: model, data, loss and metric of one training task each; nothing distributed in here."""
