#!/bin/sh
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t tmpfs tmpfs /run
mkdir /run/tmp; ip link set lo up
insmod /usr/lib/uml/modules/6.1.176/kernel/drivers/net/veth.ko
insmod /usr/lib/uml/modules/6.1.176/kernel/net/sched/sch_netem.ko
insmod /usr/lib/uml/modules/6.1.176/kernel/net/ipv4/tcp_bbr.ko
insmod /usr/lib/uml/modules/6.1.176/kernel/lib/crc-ccitt.ko
insmod /usr/lib/uml/modules/6.1.176/kernel/net/ipv6/ipv6.ko
insmod /usr/lib/uml/modules/6.1.176/kernel/net/llc/llc.ko
insmod /usr/lib/uml/modules/6.1.176/kernel/net/802/stp.ko
insmod /usr/lib/uml/modules/6.1.176/kernel/net/bridge/bridge.ko
export PATH=/work/network/.venv/bin:/root/.cargo/bin:/root/.cargo/bin:/root/.pyenv/plugins/pyenv-virtualenv/shims:/root/.pyenv/shims:/root/.pyenv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/sbin:/sbin HOME=/root TMPDIR=/run/tmp
cd /work/network && /work/network/.venv/bin/python -m tests.guest /work/network/results/.netem-gxpu57e5 2>&1; echo $? > /work/network/results/.netem-gxpu57e5/code
/work/network/.venv/bin/python -c 'import ctypes; ctypes.CDLL(None).reboot(0x4321FEDC)'