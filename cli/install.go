package cli

import (
	"fmt"
	"time"

	urfave "github.com/urfave/cli/v2"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/credential"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/packaging/manifests"
)

// manifestsText is `lockkeeper manifests`.
func manifestsText() *urfave.Command {
	return &urfave.Command{
		Name: "manifests", Usage: "Print what a cluster needs, for kubectl apply -f -", Action: manifestsCommand,
		Description: "The kinds DisruptionPolicy and HostUpdate, a namespace, the Lease that coordinators are elected by, and the rights of hosts and of\n" +
			"the coordinator. Nothing runs. Each grant says why it is there. Hosts whose Lease has another name have it at [lease] in\n" +
			"their file.\n\n" +
			"With --policy it prints the policy lockkeeper-default, for all nodes that have no other. It is apart because kubectl\n" +
			"can apply no policy before the API server knows the kind, and because policies are yours: no upgrade touches them.",
		Flags: []urfave.Flag{
			&urfave.StringFlag{Name: "namespace", Usage: "the `NAME` of lockkeeper's namespace", Value: v1alpha1.DefaultLeaseNamespace},
			&urfave.StringFlag{Name: "lease", Usage: "the `NAME` of the Lease in it", Value: v1alpha1.DefaultLeaseName},
			&urfave.BoolFlag{Name: "no-renewal", Usage: "leave out the coordinator's leave to renew its own token: you mint each one", DisableDefaultText: true},
			&urfave.StringSliceFlag{Name: "audience", Usage: "an audience `URL` that the coordinator may request when it renews its token; repeatable (default: those of https://kubernetes.default.svc)"},
			&urfave.BoolFlag{Name: "policy", Usage: "print the policy lockkeeper-default, and nothing else", DisableDefaultText: true},
		},
	}
}

// coordinatorKubeconfig is `lockkeeper kubeconfig`.
func coordinatorKubeconfig() *urfave.Command {
	return &urfave.Command{
		Name: "kubeconfig", Usage: "Mint the coordinator's kubeconfig, from your own credential", Action: kubeconfigCommand,
		Description: "The kubeconfig needs nothing beside it and is a secret. Hosts that are to stand for election have it at\n" +
			"/etc/lockkeeper/coordinator.kubeconfig. The manifests have to be applied before.\n\n" +
			"It holds a token of the coordinator's service account, which each host renews for itself. This command tests\n" +
			"whether the token can be renewed, and says what to do if it cannot. With --csr it holds a client certificate,\n" +
			"which no host renews. If your own credential may approve the request, this command does so. Otherwise it says\n" +
			"how another user can approve it, and waits.",
		Flags: []urfave.Flag{
			kubeconfigFlag(),
			&urfave.StringFlag{Name: "context", Usage: "the `NAME` of a context in your kubeconfig, instead of its current one"},
			&urfave.StringFlag{Name: "namespace", Usage: "the `NAME` of lockkeeper's namespace", Value: v1alpha1.DefaultLeaseNamespace},
			&urfave.StringFlag{Name: "lifetime", Usage: "how long it is to be valid, a `DURATION` of 1h to 365d", Value: "90d"},
			&urfave.BoolFlag{Name: "csr", Usage: "have a client certificate signed, instead of asking for a token", DisableDefaultText: true},
			&urfave.StringFlag{Name: "server", Usage: "the API server's `URL` as hosts reach it, instead of your kubeconfig's"},
			&urfave.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "write it to `FILE`, readable for its owner alone, instead of printing it"},
		},
	}
}

func manifestsCommand(c *urfave.Context) error {
	if c.Bool("policy") {
		_, err := c.App.Writer.Write(manifests.Policy())
		return err
	}
	text, err := manifests.Render(manifests.Options{
		Namespace: c.String("namespace"), Lease: c.String("lease"), NoRenewal: c.Bool("no-renewal"),
		Audiences: c.StringSlice("audience"),
	})
	if err != nil {
		return UsageError("%v", err)
	}
	_, err = c.App.Writer.Write(text)
	return err
}

func kubeconfigCommand(c *urfave.Context) error {
	lifetime, err := credential.ParseLifetime(c.String("lifetime"))
	if err != nil {
		return UsageError("--lifetime %v", err)
	}
	minted, err := credential.Mint(c.Context, credential.Options{
		Kubeconfig: c.String("kubeconfig"), Context: c.String("context"), Namespace: c.String("namespace"),
		Lifetime: lifetime, Server: c.String("server"), Version: c.App.Version,
		Certificate: c.Bool("csr"), Tell: func(what string) { fmt.Fprintln(c.App.ErrWriter, "lockkeeper: "+what) },
	})
	if err != nil {
		return err
	}
	if file := c.String("output"); file != "" {
		err = kube.WriteFile(file, minted.Kubeconfig)
	} else {
		_, err = c.App.Writer.Write(minted.Kubeconfig)
	}
	if err != nil {
		return err
	}
	for _, note := range minted.Notes(time.Now()) {
		fmt.Fprintln(c.App.ErrWriter, "lockkeeper: "+note)
	}
	return nil
}
