#!/bin/bash
# completion_test.sh - the completions of zsh and fish, in those shells: they load without a word and complete. Those of bash
# are in meta_test.sh. What is not installed is said.
. "$(dirname "$0")/harness.sh"

for shell in zsh fish; do
    exits 0 "completion $shell" completion "$shell"
    cp out "completion.$shell"
done
tried=0

# ---- zsh: an interactive shell behind a pseudo terminal, as a person has it
if command -v zsh >/dev/null; then
    tried=$((tried + 1))
    mkdir functions
    cp completion.zsh functions/_nightshift
    check "zsh reads it" zsh -n completion.zsh
    zsh -f -c "autoload -Uz compinit; compinit -u -D; source ./completion.zsh; print \$_comps[nightshift]" >out 2>err
    check "zsh: sourced, it says nothing" is_empty err
    check "zsh: sourced, it completes nightshift" [ "$(cat out)" = _nightshift ]
    cat >drive.zsh <<'END'
zmodload zsh/zpty || exit 1
zpty shell "TERM=dumb zsh -f -i"
zpty -w shell "PS1=; PS2=; unsetopt prompt_sp prompt_cr; fpath=($PWD/functions \$fpath); autoload -Uz compinit; compinit -u -D
show() { print -r -- \"<\$BUFFER>\"; BUFFER=; zle accept-line }; zle -N show; bindkey '^X' show; print REA''DY"
zpty -r -m shell seen '*READY*'
zpty -w -n shell "$1"$'\t\x18'
zpty -r -m shell seen '*<*>*'
print -r -- "${${seen##*<}%%>*}"
zpty -d shell
END
    zsh_makes() { # LINE, what a tab makes of it
        [ "$(timeout 120 zsh -f drive.zsh "$1")" = "$2" ]
    }
    check "zsh: a verb" zsh_makes "nightshift exp" "nightshift export "
    check "zsh: an option" zsh_makes "nightshift run --mem" "nightshift run --memory "
    check "zsh: an option behind an operand" zsh_makes "nightshift submit x --stri" "nightshift submit x --strict "
    check "zsh: a choice" zsh_makes "nightshift run --isa avx5" "nightshift run --isa avx512 "
    check "zsh: an operand of words" zsh_makes "nightshift completion zs" "nightshift completion zsh "
    check "zsh: verbs for help" zsh_makes "nightshift help expo" "nightshift help export "
else
    echo "SKIPPED: zsh is not installed, so its completion was NOT tried"
fi

# ---- fish says itself what it would offer
if command -v fish >/dev/null; then
    tried=$((tried + 1))
    export HOME=$work
    fish_offers() { # LINE: the words, each on a line
        fish -N -c 'source completion.fish; complete -C $argv[1]' "$1" 2>err | cut -f 1
    }
    offers() { # LINE WORD
        fish_offers "$1" | grep -qxF -e "$2"
    }
    check "fish reads it" fish --no-execute completion.fish
    check "fish: a verb" offers "nightshift exp" export
    check "fish says nothing" is_empty err
    check "fish: an option" offers "nightshift run --mem" --memory
    check "fish: not an option of another verb" sh -c '! grep -qx -e --memory' < <(fish_offers "nightshift status --mem")
    check "fish: a choice" offers "nightshift run --isa " avx512
    check "fish: an operand of words" offers "nightshift completion " zsh
    check "fish: verbs for help" offers "nightshift help expo" export
else
    echo "SKIPPED: fish is not installed, so its completion was NOT tried"
fi
[ "$tried" -gt 0 ] || [ "$wrong" -gt 0 ] || exit 77
finish
