// Package config reads the file in which a host says what it decides about itself,
// /etc/lockkeeper/lockkeeper.toml, and the drop-ins next to it.
//
// One table ([Keys]) defines every key: its type, default and bounds, what it means and
// whether a reload applies it. The parser, `check-config --effective`, the sample file,
// the manual page and docs/configuration.md all use that table.
//
// The package only reads files. It must not know what the settings are used for. To
// reload, call [Load] again; if it fails, the caller keeps the old Config.
package config
