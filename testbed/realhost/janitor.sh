# The janitor of a lab waits for the end of its input, which means the end of the lab's owner, and removes everything that
# the lab has created on the machine. A second call does nothing.
# Arguments: the lab's tag, its directory, its lock file (this process holds it open too).
tag=$1 dir=$2 lock=$3
case $tag in lkr[0-9]*) ;; *) exit 64 ;; esac
trap '' HUP INT TERM
while read -r _; do :; done # a builtin: another process would keep the lock if this one is killed

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

# A process leaves its cgroup before it is gone. The first process of a PID namespace waits for all others.
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
