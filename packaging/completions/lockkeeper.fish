# Rendered from code. Do not edit: make docs

complete -c lockkeeper -f
complete -c lockkeeper -n __fish_use_subcommand -l help -d 'show the commands'
complete -c lockkeeper -n __fish_use_subcommand -l version -d 'show the version'

complete -c lockkeeper -n __fish_use_subcommand -a run -d 'Look after this host; what the systemd unit starts'
complete -c lockkeeper -n '__fish_seen_subcommand_from run' -l config -rF -d 'the host\'s FILE, instead of /etc/lockkeeper/lockkeeper.toml'
complete -c lockkeeper -n '__fish_seen_subcommand_from run' -l help -s h -d 'show this'

complete -c lockkeeper -n __fish_use_subcommand -a status -d 'Show how the rollout stands, or one node'
complete -c lockkeeper -n '__fish_seen_subcommand_from status' -l all -s A -d 'all nodes, not only those that are not idle and content'
complete -c lockkeeper -n '__fish_seen_subcommand_from status' -l watch -s w -d 'go on showing what changes, until interrupted'
complete -c lockkeeper -n '__fish_seen_subcommand_from status' -l output -s o -x -a 'text json' -d 'FORMAT: text or json (default: text)'
complete -c lockkeeper -n '__fish_seen_subcommand_from status' -l exit-code -d 'say what the report says by the exit status too'
complete -c lockkeeper -n '__fish_seen_subcommand_from status' -l kubeconfig -rF -d 'your credential\'s FILE, instead of KUBECONFIG or ~/.kube/config'
complete -c lockkeeper -n '__fish_seen_subcommand_from status' -l config -rF -d 'the host\'s FILE, instead of /etc/lockkeeper/lockkeeper.toml'
complete -c lockkeeper -n '__fish_seen_subcommand_from status' -l help -s h -d 'show this'

complete -c lockkeeper -n __fish_use_subcommand -a history -d 'Show the turns that are over, and how long each stage took'
complete -c lockkeeper -n '__fish_seen_subcommand_from history' -l output -s o -x -a 'text json' -d 'FORMAT: text or json (default: text)'
complete -c lockkeeper -n '__fish_seen_subcommand_from history' -l kubeconfig -rF -d 'your credential\'s FILE, instead of KUBECONFIG or ~/.kube/config'
complete -c lockkeeper -n '__fish_seen_subcommand_from history' -l help -s h -d 'show this'

complete -c lockkeeper -n __fish_use_subcommand -a wait -d 'Wait until the fleet or a node is up to date, idle or held'
complete -c lockkeeper -n '__fish_seen_subcommand_from wait' -l for -x -a 'up-to-date idle held' -d 'what to wait for, a GOAL: up-to-date, idle or held'
complete -c lockkeeper -n '__fish_seen_subcommand_from wait' -l timeout -x -a '' -d 'how long to wait, a DURATION of 1s to 720h, such as 90m; without it there is no limit'
complete -c lockkeeper -n '__fish_seen_subcommand_from wait' -l kubeconfig -rF -d 'your credential\'s FILE, instead of KUBECONFIG or ~/.kube/config'
complete -c lockkeeper -n '__fish_seen_subcommand_from wait' -l config -rF -d 'the host\'s FILE, instead of /etc/lockkeeper/lockkeeper.toml'
complete -c lockkeeper -n '__fish_seen_subcommand_from wait' -l help -s h -d 'show this'

complete -c lockkeeper -n __fish_use_subcommand -a plan -d 'Show what changes would cost and when, before they happen'
complete -c lockkeeper -n '__fish_seen_subcommand_from plan' -l change -x -a '' -d 'a CHANGE that is to come, may be repeated; one of file:/etc/…, unit:NAME, sentinel:/run/…, os, os:VERSION and request'
complete -c lockkeeper -n '__fish_seen_subcommand_from plan' -l selector -s l -x -a '' -d 'the nodes whose labels SELECTOR selects, as kubectl has it, instead of all'
complete -c lockkeeper -n '__fish_seen_subcommand_from plan' -l output -s o -x -a 'text json' -d 'FORMAT: text or json (default: text)'
complete -c lockkeeper -n '__fish_seen_subcommand_from plan' -l exit-code -d 'say what the report says by the exit status too'
complete -c lockkeeper -n '__fish_seen_subcommand_from plan' -l kubeconfig -rF -d 'your credential\'s FILE, instead of KUBECONFIG or ~/.kube/config'
complete -c lockkeeper -n '__fish_seen_subcommand_from plan' -l config -rF -d 'the host\'s FILE, instead of /etc/lockkeeper/lockkeeper.toml'
complete -c lockkeeper -n '__fish_seen_subcommand_from plan' -l help -s h -d 'show this'

complete -c lockkeeper -n __fish_use_subcommand -a check-config -d 'Check this host\'s configuration'
complete -c lockkeeper -n '__fish_seen_subcommand_from check-config' -l config -rF -d 'the host\'s FILE, instead of /etc/lockkeeper/lockkeeper.toml'
complete -c lockkeeper -n '__fish_seen_subcommand_from check-config' -l effective -d 'print every value in effect and where it comes from'
complete -c lockkeeper -n '__fish_seen_subcommand_from check-config' -l help -s h -d 'show this'

complete -c lockkeeper -n __fish_use_subcommand -a retry -d 'Clear a node\'s failed turn'
complete -c lockkeeper -n '__fish_seen_subcommand_from retry' -l kubeconfig -rF -d 'your credential\'s FILE, instead of KUBECONFIG or ~/.kube/config'
complete -c lockkeeper -n '__fish_seen_subcommand_from retry' -l config -rF -d 'the host\'s FILE, instead of /etc/lockkeeper/lockkeeper.toml'
complete -c lockkeeper -n '__fish_seen_subcommand_from retry' -l help -s h -d 'show this'

complete -c lockkeeper -n __fish_use_subcommand -a confirm -d 'Confirm a hook that a node\'s turn waits for'
complete -c lockkeeper -n '__fish_seen_subcommand_from confirm' -l kubeconfig -rF -d 'your credential\'s FILE, instead of KUBECONFIG or ~/.kube/config'
complete -c lockkeeper -n '__fish_seen_subcommand_from confirm' -l config -rF -d 'the host\'s FILE, instead of /etc/lockkeeper/lockkeeper.toml'
complete -c lockkeeper -n '__fish_seen_subcommand_from confirm' -l help -s h -d 'show this'

complete -c lockkeeper -n __fish_use_subcommand -a stop -d 'Emergency stop: nothing is promoted, no host commits'
complete -c lockkeeper -n '__fish_seen_subcommand_from stop' -l kubeconfig -rF -d 'your credential\'s FILE, instead of KUBECONFIG or ~/.kube/config'
complete -c lockkeeper -n '__fish_seen_subcommand_from stop' -l config -rF -d 'the host\'s FILE, instead of /etc/lockkeeper/lockkeeper.toml'
complete -c lockkeeper -n '__fish_seen_subcommand_from stop' -l help -s h -d 'show this'

complete -c lockkeeper -n __fish_use_subcommand -a go -d 'End the emergency stop'
complete -c lockkeeper -n '__fish_seen_subcommand_from go' -l kubeconfig -rF -d 'your credential\'s FILE, instead of KUBECONFIG or ~/.kube/config'
complete -c lockkeeper -n '__fish_seen_subcommand_from go' -l config -rF -d 'the host\'s FILE, instead of /etc/lockkeeper/lockkeeper.toml'
complete -c lockkeeper -n '__fish_seen_subcommand_from go' -l help -s h -d 'show this'

complete -c lockkeeper -n __fish_use_subcommand -a manifests -d 'Print what a cluster needs, for kubectl apply -f -'
complete -c lockkeeper -n '__fish_seen_subcommand_from manifests' -l namespace -x -a '' -d 'the NAME of lockkeeper\'s namespace (default: lockkeeper)'
complete -c lockkeeper -n '__fish_seen_subcommand_from manifests' -l lease -x -a '' -d 'the NAME of the Lease in it (default: lockkeeper)'
complete -c lockkeeper -n '__fish_seen_subcommand_from manifests' -l no-renewal -d 'leave out the coordinator\'s leave to renew its own token: you mint each one'
complete -c lockkeeper -n '__fish_seen_subcommand_from manifests' -l audience -x -a '' -d 'an audience URL that the coordinator may request when it renews its token; repeatable (default: those of https://kubernetes.default.svc)'
complete -c lockkeeper -n '__fish_seen_subcommand_from manifests' -l policy -d 'print the policy lockkeeper-default, and nothing else'
complete -c lockkeeper -n '__fish_seen_subcommand_from manifests' -l help -s h -d 'show this'

complete -c lockkeeper -n __fish_use_subcommand -a kubeconfig -d 'Mint the coordinator\'s kubeconfig, from your own credential'
complete -c lockkeeper -n '__fish_seen_subcommand_from kubeconfig' -l kubeconfig -rF -d 'your credential\'s FILE, instead of KUBECONFIG or ~/.kube/config'
complete -c lockkeeper -n '__fish_seen_subcommand_from kubeconfig' -l context -x -a '' -d 'the NAME of a context in your kubeconfig, instead of its current one'
complete -c lockkeeper -n '__fish_seen_subcommand_from kubeconfig' -l namespace -x -a '' -d 'the NAME of lockkeeper\'s namespace (default: lockkeeper)'
complete -c lockkeeper -n '__fish_seen_subcommand_from kubeconfig' -l lifetime -x -a '' -d 'how long it is to be valid, a DURATION of 1h to 365d (default: 90d)'
complete -c lockkeeper -n '__fish_seen_subcommand_from kubeconfig' -l csr -d 'have a client certificate signed, instead of asking for a token'
complete -c lockkeeper -n '__fish_seen_subcommand_from kubeconfig' -l server -x -a '' -d 'the API server\'s URL as hosts reach it, instead of your kubeconfig\'s'
complete -c lockkeeper -n '__fish_seen_subcommand_from kubeconfig' -l output -s o -rF -d 'write it to FILE, readable for its owner alone, instead of printing it'
complete -c lockkeeper -n '__fish_seen_subcommand_from kubeconfig' -l help -s h -d 'show this'

complete -c lockkeeper -n __fish_use_subcommand -a version -d 'Show the version'
complete -c lockkeeper -n '__fish_seen_subcommand_from version' -l help -s h -d 'show this'

complete -c lockkeeper -n __fish_use_subcommand -a help -d 'Show the commands, or one of them'
complete -c lockkeeper -n '__fish_seen_subcommand_from help' -l help -s h -d 'show this'
complete -c lockkeeper -n '__fish_seen_subcommand_from help' -a 'run status history wait plan check-config retry confirm stop go manifests kubeconfig version help'
