# lockkeeper itself prints what can follow; see `Complete` in its source, cli/help.go.

_lockkeeper() {
	local cur=${COMP_WORDS[COMP_CWORD]} line
	local -a offers=()
	while IFS= read -r line; do
		offers+=("${line%%$'\t'*}")
	done < <(lockkeeper __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
	if [[ ${offers[0]-} == :files ]]; then
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		type compopt &>/dev/null && compopt -o filenames 2>/dev/null
		return
	fi
	# compgen -W would expand the words, and so run a command that is in one of them.
	COMPREPLY=()
	for line in "${offers[@]}"; do
		[[ $line != "$cur"* ]] || COMPREPLY+=("$line")
	done
} &&
	complete -F _lockkeeper lockkeeper
