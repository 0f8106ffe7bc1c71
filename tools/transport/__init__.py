"""The transport's measuring harness: two processes that drive a plugin or a group, and what is measured with them."""
