#!/bin/sh
# Asks the distribution whether this host needs a reboot, and creates or removes the sentinel
# /run/reboot-required accordingly. It is for hosts with dnf or rpm-ostree, on which no other program
# does that.
#
# dnf exits with 1 if a reboot is needed, and with 1 after any error. So an answer counts only if the
# exit status and the text agree. Without such an answer the sentinel stays as it is, and this script
# exits with 1.
#
# It removes only a sentinel that it has created: another program's sentinel has another content.
#
# It needs a POSIX shell, grep, head, rm, tail, timeout and tr. These variables change what it does:
#   REBOOT_SENTINEL  the sentinel; /run/reboot-required by default
#   REBOOT_TOOL      rpm-ostree, dnf5 or dnf; by default the one that updates this host
#   REBOOT_TIMEOUT   how long the tool may take, in seconds; 120 by default
set -u
LC_ALL=C # the tools translate their answers
export LC_ALL

sentinel=${REBOOT_SENTINEL:-/run/reboot-required}
limit=${REBOOT_TIMEOUT:-120}
tool=${REBOOT_TOOL:-}
mark='Created by lockkeeper-reboot-check.'

say() { echo "$*" >&2; }

if [ -n "$tool" ]; then
	: # the administrator has chosen
elif [ -e /run/ostree-booted ]; then
	tool=rpm-ostree
elif command -v dnf5 >/dev/null; then
	tool=dnf5
else
	tool=dnf
fi

# ask runs a command, and keeps what it prints and its exit status. If it prints more than 64 KiB, the
# exit status is cut off, and the answer does not count. What it prints to standard error is logged.
ask() {
	answer=$({
		timeout -k 5 "$limit" "$@" </dev/null
		printf '\nexit status %s\n' "$?"
	} | head -c 65536)
	status=$(printf '%s\n' "$answer" | tail -n 1)
}

# prints reports whether a line of the answer is the given text.
prints() { printf '%s\n' "$answer" | grep -qxF "$1"; }

needed=unknown
case $tool in
rpm-ostree)
	# It exits with 77 if the next boot is into another deployment than the running one.
	ask rpm-ostree status --pending-exit-77
	if prints 'Deployments:'; then
		case $status in
		'exit status 77') needed=yes ;;
		'exit status 0') needed=no ;;
		esac
	fi
	;;
dnf5)
	ask dnf5 needs-restarting --json
	field=$(printf '%s\n' "$answer" | grep -o '"reboot_required"[[:space:]]*:[[:space:]]*[a-z]*' | tr -d '"[:space:]')
	case $status,$field in
	'exit status 1,reboot_required:true') needed=yes ;;
	'exit status 0,reboot_required:false') needed=no ;;
	esac
	;;
dnf)
	ask dnf needs-restarting -r
	if prints 'Reboot is required to fully utilize these updates.' && [ "$status" = 'exit status 1' ]; then
		needed=yes
	elif prints 'Reboot should not be necessary.' && [ "$status" = 'exit status 0' ]; then
		needed=no
	fi
	;;
*)
	say "REBOOT_TOOL is $tool, expected rpm-ostree, dnf5 or dnf. $sentinel stays as it is."
	exit 1
	;;
esac

case $needed in
yes)
	# Another program may create the sentinel at the same time: then that one stays.
	(set -C && echo "$mark" >"$sentinel") 2>/dev/null
	if [ ! -e "$sentinel" ]; then
		say "$tool says that a reboot is needed, but $sentinel cannot be created."
		exit 1
	fi
	say "$tool says that a reboot is needed: $sentinel exists."
	;;
no)
	if [ ! -e "$sentinel" ]; then
		say "$tool says that no reboot is needed: there is no $sentinel."
	elif [ "$(head -c 100 "$sentinel")" = "$mark" ]; then
		rm -f "$sentinel" || exit 1
		say "$tool says that no reboot is needed: $sentinel is removed."
	else
		say "$tool says that no reboot is needed. Another program created $sentinel: it stays."
	fi
	;;
*)
	say "$tool gave no answer that counts ($(printf '%s' "$status" | head -c 30)); $sentinel stays as it is. It printed:"
	printf '%s\n' "$answer" | head -n 20 | head -c 2000 >&2
	exit 1
	;;
esac
