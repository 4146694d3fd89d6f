# lockkeeper itself prints what can follow; see `Complete` in its source, cli/help.go.

function __lockkeeper_offers
    set -l words (commandline -opc) (commandline -ct)
    set -l offers (lockkeeper __complete $words[2..] 2>/dev/null)
    if test "$offers" = :files
        __fish_complete_path (commandline -ct)
    else
        printf '%s\n' $offers
    end
end

complete -c lockkeeper -f -a '(__lockkeeper_offers)'
