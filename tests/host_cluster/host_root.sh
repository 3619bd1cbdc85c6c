# Becomes the first process of a host, in namespaces that are new:
#
#   host_root.sh FOLDER NAME CHECKOUT PYTHON...
#
# Its root shows the machine's programs, the checkout and the folders PYTHON, all read-only, a copy
# of /etc, and what lies in FOLDER. Nothing else of the machine's files can be seen from inside.
set -e
folder=$1 name=$2 checkout=$3
shift 2
root=$folder/root
hostname "$name"
mkdir -p "$root"
mount -t tmpfs -o mode=755 tmpfs "$root"

show() {
  mkdir -p "$root$1"
  mount --bind "$1" "$root$1"
  mount -o remount,bind,ro "$root$1"
}

own() {
  mkdir -p "$folder/$1" "$root/$2"
  mount --bind "$folder/$1" "$root/$2"
}

for place in /usr /bin /sbin /lib /lib32 /lib64 /libx32 /opt; do
  if [ -L "$place" ]; then cp -P "$place" "$root$place"; elif [ -d "$place" ]; then show "$place"; fi
done
cp -a /etc "$root/etc"
rm -rf "$root/etc/docker" "$root/etc/machine-id"
own etc-docker etc/docker # The engine's identity.
own home root
own var var
own tmp tmp
chmod 1777 "$root/tmp"
mkdir -p "$root/run" "$root/proc" "$root/sys" "$root/dev" "$root/counted" "$root/left" "$folder/var/lib"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
ln -sfn ../run "$folder/var/run"
for place in "$@"; do show "$place"; done
# What tests and runs leave in the checkout belongs to the machine, not to a host.
if [ -d "$checkout/build" ]; then mount -t tmpfs tmpfs "$root$checkout/build"; fi
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
# By its path: the engine may change PATH, and the name could find the wrapper itself.
sed "s|REAL_RUNC|$(command -v runc)|" "$checkout/tests/host_cluster/counted_runc.sh" >"$root/counted/runc"
chmod 755 "$root/counted/runc"
cat "$folder/hosts" >>"$root/etc/hosts"

cd "$root"
python3 "$checkout/scripts/pivot_root.py" . left
umount -l /left
cd /
export HOME=/root
exec docker-init -- sleep infinity
