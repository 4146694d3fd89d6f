// Command lockkeeper rolls host updates through a Kubernetes cluster.
package main

import (
	_ "github.com/BurntSushi/toml"
	_ "github.com/coreos/go-systemd/v22/daemon"
	_ "github.com/coreos/go-systemd/v22/dbus"
	_ "github.com/coreos/go-systemd/v22/journal"
	_ "github.com/godbus/dbus/v5"
	_ "github.com/urfave/cli/v2"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/client-go/kubernetes"
)

func main() {}
