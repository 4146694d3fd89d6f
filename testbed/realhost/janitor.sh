# The janitor of a lab: waits for the end of its input, which is the end of the lab's owner, and removes all that the lab has
# made on the machine. Called again it finds nothing to do.
# Arguments: the lab's tag, its folder, its lock file (held open by this process too).
tag=$1 dir=$2 lock=$3
case $tag in lkr[0-9]*) ;; *) exit 64 ;; esac
trap '' HUP INT TERM
while read -r _; do :; done # no other process, which would hold the lock when this one is killed

groups() {
	while read -r _ mount type _; do
		case $type in cgroup | cgroup2) [ ! -d "$mount/$tag" ] || echo "$mount/$tag" ;; esac
	done </proc/mounts
}

round=0 seen=
while [ $round -lt 100 ]; do
	pids=$(for g in $(groups); do find "$g" -name cgroup.procs -exec cat {} + 2>/dev/null; done | sort -un)
	[ -n "$pids" ] || break
	for pid in $pids; do kill -KILL "$pid" 2>/dev/null; done
	seen="$seen $pids"
	sleep 0.1
	round=$((round + 1))
done

# A process leaves its cgroup some time before it is gone; the first one of a PID namespace waits for all others.
dying() {
	for pid in $seen; do
		! grep -qs '^State:.[^ZX]' "/proc/$pid/status" || return 0
	done
	return 1
}
round=0
while [ $round -lt 50 ] && dying; do
	sleep 0.1
	round=$((round + 1))
done

# An empty cgroup can stay busy for a moment.
round=0
while [ $round -lt 50 ] && [ -n "$(groups)" ]; do
	for g in $(groups); do find "$g" -depth -type d -exec rmdir {} \; 2>/dev/null; done
	sleep 0.1
	round=$((round + 1))
done
ip link delete "$tag" 2>/dev/null
rm -rf "/run/systemd/nspawn/propagate/$tag-"*
case $dir in */lockkeeper-realhost-*) rm -rf "$dir" ;; esac
[ -z "$(groups)" ] && ! ip link show "$tag" >/dev/null 2>&1 && [ ! -e "$dir" ] || { echo "the janitor could not remove all of $tag"; exit 1; }
rm -f "$lock"
