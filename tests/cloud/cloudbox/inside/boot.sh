# The first process of a machine: its root and kernel file systems, then init.
# Arguments: the image's root, the machine's own folder. Runs in fresh mount, PID, UTS and IPC namespaces.
set -eu
image=$1
machine=$2
mount -t overlay overlay -o "lowerdir=$image,upperdir=$machine/upper,workdir=$machine/work" "$machine/root"
cd "$machine/root"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
mkdir run/lock
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mknod -m 666 dev/null c 1 3
mknod -m 666 dev/zero c 1 5
mknod -m 666 dev/full c 1 7
mknod -m 666 dev/random c 1 8
mknod -m 666 dev/urandom c 1 9
mknod -m 666 dev/tty c 5 0
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
pivot_root . mnt
exec chroot . /bin/sh -c 'umount -l /mnt; exec /usr/bin/python3 -SE /usr/lib/cloudbox/init.py'
