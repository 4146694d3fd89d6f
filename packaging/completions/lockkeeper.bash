# Rendered from code. Do not edit: make docs

_lockkeeper() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]-}
	COMPREPLY=()
	if ((COMP_CWORD == 1)); then
		mapfile -t COMPREPLY < <(compgen -W 'run status history wait plan check-config retry confirm stop go manifests kubeconfig version help --help --version' -- "$cur")
		return
	fi
	case $command:$prev in
	run:--config)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		type compopt &>/dev/null && compopt -o filenames 2>/dev/null
		return
		;;
	status:--output | status:-o)
		mapfile -t COMPREPLY < <(compgen -W 'text json' -- "$cur")
		return
		;;
	status:--kubeconfig)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		type compopt &>/dev/null && compopt -o filenames 2>/dev/null
		return
		;;
	status:--config)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		type compopt &>/dev/null && compopt -o filenames 2>/dev/null
		return
		;;
	history:--output | history:-o)
		mapfile -t COMPREPLY < <(compgen -W 'text json' -- "$cur")
		return
		;;
	history:--kubeconfig)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		type compopt &>/dev/null && compopt -o filenames 2>/dev/null
		return
		;;
	wait:--for)
		mapfile -t COMPREPLY < <(compgen -W 'up-to-date idle held' -- "$cur")
		return
		;;
	wait:--timeout)
		mapfile -t COMPREPLY < <(compgen -W '' -- "$cur")
		return
		;;
	wait:--kubeconfig)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		type compopt &>/dev/null && compopt -o filenames 2>/dev/null
		return
		;;
	wait:--config)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		type compopt &>/dev/null && compopt -o filenames 2>/dev/null
		return
		;;
	plan:--change)
		mapfile -t COMPREPLY < <(compgen -W '' -- "$cur")
		return
		;;
	plan:--selector | plan:-l)
		mapfile -t COMPREPLY < <(compgen -W '' -- "$cur")
		return
		;;
	plan:--output | plan:-o)
		mapfile -t COMPREPLY < <(compgen -W 'text json' -- "$cur")
		return
		;;
	plan:--kubeconfig)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		type compopt &>/dev/null && compopt -o filenames 2>/dev/null
		return
		;;
	plan:--config)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		type compopt &>/dev/null && compopt -o filenames 2>/dev/null
		return
		;;
	check-config:--config)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		type compopt &>/dev/null && compopt -o filenames 2>/dev/null
		return
		;;
	retry:--kubeconfig)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		type compopt &>/dev/null && compopt -o filenames 2>/dev/null
		return
		;;
	retry:--config)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		type compopt &>/dev/null && compopt -o filenames 2>/dev/null
		return
		;;
	confirm:--kubeconfig)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		type compopt &>/dev/null && compopt -o filenames 2>/dev/null
		return
		;;
	confirm:--config)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		type compopt &>/dev/null && compopt -o filenames 2>/dev/null
		return
		;;
	stop:--kubeconfig)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		type compopt &>/dev/null && compopt -o filenames 2>/dev/null
		return
		;;
	stop:--config)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		type compopt &>/dev/null && compopt -o filenames 2>/dev/null
		return
		;;
	go:--kubeconfig)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		type compopt &>/dev/null && compopt -o filenames 2>/dev/null
		return
		;;
	go:--config)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		type compopt &>/dev/null && compopt -o filenames 2>/dev/null
		return
		;;
	manifests:--namespace)
		mapfile -t COMPREPLY < <(compgen -W '' -- "$cur")
		return
		;;
	manifests:--lease)
		mapfile -t COMPREPLY < <(compgen -W '' -- "$cur")
		return
		;;
	manifests:--audience)
		mapfile -t COMPREPLY < <(compgen -W '' -- "$cur")
		return
		;;
	kubeconfig:--kubeconfig)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		type compopt &>/dev/null && compopt -o filenames 2>/dev/null
		return
		;;
	kubeconfig:--context)
		mapfile -t COMPREPLY < <(compgen -W '' -- "$cur")
		return
		;;
	kubeconfig:--namespace)
		mapfile -t COMPREPLY < <(compgen -W '' -- "$cur")
		return
		;;
	kubeconfig:--lifetime)
		mapfile -t COMPREPLY < <(compgen -W '' -- "$cur")
		return
		;;
	kubeconfig:--server)
		mapfile -t COMPREPLY < <(compgen -W '' -- "$cur")
		return
		;;
	kubeconfig:--output | kubeconfig:-o)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		type compopt &>/dev/null && compopt -o filenames 2>/dev/null
		return
		;;
	esac
	case $command in
	run) mapfile -t COMPREPLY < <(compgen -W '--config --help -h' -- "$cur") ;;
	status) mapfile -t COMPREPLY < <(compgen -W '--all -A --watch -w --output -o --exit-code --kubeconfig --config --help -h' -- "$cur") ;;
	history) mapfile -t COMPREPLY < <(compgen -W '--output -o --kubeconfig --help -h' -- "$cur") ;;
	wait) mapfile -t COMPREPLY < <(compgen -W '--for --timeout --kubeconfig --config --help -h' -- "$cur") ;;
	plan) mapfile -t COMPREPLY < <(compgen -W '--change --selector -l --output -o --exit-code --kubeconfig --config --help -h' -- "$cur") ;;
	check-config) mapfile -t COMPREPLY < <(compgen -W '--config --effective --help -h' -- "$cur") ;;
	retry) mapfile -t COMPREPLY < <(compgen -W '--kubeconfig --config --help -h' -- "$cur") ;;
	confirm) mapfile -t COMPREPLY < <(compgen -W '--kubeconfig --config --help -h' -- "$cur") ;;
	stop) mapfile -t COMPREPLY < <(compgen -W '--kubeconfig --config --help -h' -- "$cur") ;;
	go) mapfile -t COMPREPLY < <(compgen -W '--kubeconfig --config --help -h' -- "$cur") ;;
	manifests) mapfile -t COMPREPLY < <(compgen -W '--namespace --lease --no-renewal --audience --policy --help -h' -- "$cur") ;;
	kubeconfig) mapfile -t COMPREPLY < <(compgen -W '--kubeconfig --context --namespace --lifetime --csr --server --output -o --help -h' -- "$cur") ;;
	version) mapfile -t COMPREPLY < <(compgen -W '--help -h' -- "$cur") ;;
	help) mapfile -t COMPREPLY < <(compgen -W '--help -h run status history wait plan check-config retry confirm stop go manifests kubeconfig version help' -- "$cur") ;;
	esac
} &&
	complete -F _lockkeeper lockkeeper
