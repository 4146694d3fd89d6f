#compdef lockkeeper
# lockkeeper itself prints what can follow; see `Complete` in its source, cli/help.go.

_lockkeeper() {
	local -a offers
	offers=("${(@f)$(lockkeeper __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
	if [[ $offers[1] == :files ]]; then
		_files
	else
		offers=("${(@)offers//:/\\:}")
		offers=("${(@)offers/$'\t'/:}")
		_describe lockkeeper offers
	fi
}

if [[ $funcstack[1] == _lockkeeper ]]; then
	_lockkeeper "$@"
else
	compdef _lockkeeper lockkeeper
fi
