#compdef lockkeeper
# Rendered from code. Do not edit: make docs

_lockkeeper_commands() {
	local -a commands=(
		'run:Look after this host; what the systemd unit starts'
		'status:Show how the rollout stands, or one node'
		'history:Show the turns that are over, and how long each stage took'
		'wait:Wait until the fleet or a node is up to date, idle or held'
		'plan:Show what changes would cost and when, before they happen'
		'check-config:Check this host'\''s configuration'
		'retry:Clear a node'\''s failed turn'
		'confirm:Confirm a hook that a node'\''s turn waits for'
		'stop:Emergency stop: nothing is promoted, no host commits'
		'go:End the emergency stop'
		'manifests:Print what a cluster needs, for kubectl apply -f -'
		'kubeconfig:Mint the coordinator'\''s kubeconfig, from your own credential'
		'version:Show the version'
		'help:Show the commands, or one of them'
	)
	_describe -t commands command commands
}

_lockkeeper() {
	local curcontext=$curcontext state line
	typeset -A opt_args
	_arguments -C '(- : *)--help[show the commands]' '(- : *)--version[show the version]' '1: :_lockkeeper_commands' '*:: :->arguments' && return
	[[ $state == arguments ]] || return 1
	case $line[1] in
	run)
		_arguments -s \
			'--config[the host'\''s FILE, instead of /etc/lockkeeper/lockkeeper.toml]:file:_files' \
			'(--help -h)--help[show this]' \
			'(--help -h)-h[show this]'
		;;
	status)
		_arguments -s \
			'(--all -A)--all[all nodes, not only those that are not idle and content]' \
			'(--all -A)-A[all nodes, not only those that are not idle and content]' \
			'(--watch -w)--watch[go on showing what changes, until interrupted]' \
			'(--watch -w)-w[go on showing what changes, until interrupted]' \
			'(--output -o)--output[FORMAT\: text or json (default\: text)]:format:(text json)' \
			'(--output -o)-o[FORMAT\: text or json (default\: text)]:format:(text json)' \
			'--exit-code[say what the report says by the exit status too]' \
			'--kubeconfig[your credential'\''s FILE, instead of KUBECONFIG or ~/.kube/config]:file:_files' \
			'--config[the host'\''s FILE, instead of /etc/lockkeeper/lockkeeper.toml]:file:_files' \
			'(--help -h)--help[show this]' \
			'(--help -h)-h[show this]' \
			'1:node: '
		;;
	history)
		_arguments -s \
			'(--output -o)--output[FORMAT\: text or json (default\: text)]:format:(text json)' \
			'(--output -o)-o[FORMAT\: text or json (default\: text)]:format:(text json)' \
			'--kubeconfig[your credential'\''s FILE, instead of KUBECONFIG or ~/.kube/config]:file:_files' \
			'(--help -h)--help[show this]' \
			'(--help -h)-h[show this]' \
			'1:node: '
		;;
	wait)
		_arguments -s \
			'--for[what to wait for, a GOAL\: up-to-date, idle or held]:goal:(up-to-date idle held)' \
			'--timeout[how long to wait, a DURATION of 1s to 720h, such as 90m; without it there is no limit]:duration:()' \
			'--kubeconfig[your credential'\''s FILE, instead of KUBECONFIG or ~/.kube/config]:file:_files' \
			'--config[the host'\''s FILE, instead of /etc/lockkeeper/lockkeeper.toml]:file:_files' \
			'(--help -h)--help[show this]' \
			'(--help -h)-h[show this]' \
			'1:node: '
		;;
	plan)
		_arguments -s \
			'--change[a CHANGE that is to come, may be repeated; one of file\:/etc/…, unit\:NAME, sentinel\:/run/…, os, os\:VERSION and request]:change:()' \
			'(--selector -l)--selector[the nodes whose labels SELECTOR selects, as kubectl has it, instead of all]:selector:()' \
			'(--selector -l)-l[the nodes whose labels SELECTOR selects, as kubectl has it, instead of all]:selector:()' \
			'(--output -o)--output[FORMAT\: text or json (default\: text)]:format:(text json)' \
			'(--output -o)-o[FORMAT\: text or json (default\: text)]:format:(text json)' \
			'--exit-code[say what the report says by the exit status too]' \
			'--kubeconfig[your credential'\''s FILE, instead of KUBECONFIG or ~/.kube/config]:file:_files' \
			'--config[the host'\''s FILE, instead of /etc/lockkeeper/lockkeeper.toml]:file:_files' \
			'(--help -h)--help[show this]' \
			'(--help -h)-h[show this]' \
			'1:node: '
		;;
	check-config)
		_arguments -s \
			'--config[the host'\''s FILE, instead of /etc/lockkeeper/lockkeeper.toml]:file:_files' \
			'--effective[print every value in effect and where it comes from]' \
			'(--help -h)--help[show this]' \
			'(--help -h)-h[show this]'
		;;
	retry)
		_arguments -s \
			'--kubeconfig[your credential'\''s FILE, instead of KUBECONFIG or ~/.kube/config]:file:_files' \
			'--config[the host'\''s FILE, instead of /etc/lockkeeper/lockkeeper.toml]:file:_files' \
			'(--help -h)--help[show this]' \
			'(--help -h)-h[show this]' \
			'1:node: '
		;;
	confirm)
		_arguments -s \
			'--kubeconfig[your credential'\''s FILE, instead of KUBECONFIG or ~/.kube/config]:file:_files' \
			'--config[the host'\''s FILE, instead of /etc/lockkeeper/lockkeeper.toml]:file:_files' \
			'(--help -h)--help[show this]' \
			'(--help -h)-h[show this]' \
			'1:node: ' \
			'2:hook: '
		;;
	stop)
		_arguments -s \
			'--kubeconfig[your credential'\''s FILE, instead of KUBECONFIG or ~/.kube/config]:file:_files' \
			'--config[the host'\''s FILE, instead of /etc/lockkeeper/lockkeeper.toml]:file:_files' \
			'(--help -h)--help[show this]' \
			'(--help -h)-h[show this]' \
			'*:reason: '
		;;
	go)
		_arguments -s \
			'--kubeconfig[your credential'\''s FILE, instead of KUBECONFIG or ~/.kube/config]:file:_files' \
			'--config[the host'\''s FILE, instead of /etc/lockkeeper/lockkeeper.toml]:file:_files' \
			'(--help -h)--help[show this]' \
			'(--help -h)-h[show this]'
		;;
	manifests)
		_arguments -s \
			'--namespace[the NAME of lockkeeper'\''s namespace (default\: lockkeeper)]:name:()' \
			'--lease[the NAME of the Lease in it (default\: lockkeeper)]:name:()' \
			'--no-renewal[leave out the coordinator'\''s leave to renew its own token\: you mint each one]' \
			'--audience[an audience URL that the coordinator may request when it renews its token; repeatable (default\: those of https\://kubernetes.default.svc)]:url:()' \
			'--policy[print the policy lockkeeper-default, and nothing else]' \
			'(--help -h)--help[show this]' \
			'(--help -h)-h[show this]'
		;;
	kubeconfig)
		_arguments -s \
			'--kubeconfig[your credential'\''s FILE, instead of KUBECONFIG or ~/.kube/config]:file:_files' \
			'--context[the NAME of a context in your kubeconfig, instead of its current one]:name:()' \
			'--namespace[the NAME of lockkeeper'\''s namespace (default\: lockkeeper)]:name:()' \
			'--lifetime[how long it is to be valid, a DURATION of 1h to 365d (default\: 90d)]:duration:()' \
			'--csr[have a client certificate signed, instead of asking for a token]' \
			'--server[the API server'\''s URL as hosts reach it, instead of your kubeconfig'\''s]:url:()' \
			'(--output -o)--output[write it to FILE, readable for its owner alone, instead of printing it]:file:_files' \
			'(--output -o)-o[write it to FILE, readable for its owner alone, instead of printing it]:file:_files' \
			'(--help -h)--help[show this]' \
			'(--help -h)-h[show this]'
		;;
	version)
		_arguments -s \
			'(--help -h)--help[show this]' \
			'(--help -h)-h[show this]'
		;;
	help)
		_arguments -s \
			'(--help -h)--help[show this]' \
			'(--help -h)-h[show this]' \
			'1: :_lockkeeper_commands'
		;;
	esac
}

if [[ $funcstack[1] == _lockkeeper ]]; then
	_lockkeeper "$@"
else
	compdef _lockkeeper lockkeeper
fi
