// Package config reads what a host decides about itself: its file
// /etc/lockkeeper/lockkeeper.toml and the drop-ins beside it.
//
// One table ([Keys]) defines every key: its type, default, bounds, what it
// means and whether a reload applies it. Reading, `check-config --effective`
// and docs/configuration.md all come from that table, so that none of them can
// tell another story.
//
// This room reads files and nothing else. It must not know what the settings
// are used for, nor talk to anything; calling [Load] again is all there is to a
// reload, and a failed one returns nothing that could replace what is in effect.
package config
