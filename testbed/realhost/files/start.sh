# Boots a host in a new mount namespace, so that its mounts end with its last process.
# Arguments: the tree, the host's directory, the number of its cgroups, the cgroups, and the command that boots the host.
set -e
tree=$1 dir=$2 groups=$3
shift 3
while [ "$groups" -gt 0 ]; do
	echo 0 >"$1/cgroup.procs"
	shift
	groups=$((groups - 1))
done
mount -t overlay overlay -o "lowerdir=$tree,upperdir=$dir/up,workdir=$dir/work" "$dir/root"
exec "$@" </dev/null
