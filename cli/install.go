package cli

import (
	"fmt"
	"time"

	urfave "github.com/urfave/cli/v2"

	"lockkeeper.dev/lockkeeper/cli/credential"
	"lockkeeper.dev/lockkeeper/kube/secret"
	"lockkeeper.dev/lockkeeper/packaging/manifests"
)

// manifestsText is `lockkeeper manifests`.
func manifestsText() *urfave.Command {
	return &urfave.Command{
		Name: "manifests", Usage: "Print what the cluster needs, for kubectl apply -f -", Action: manifestsCommand,
		Description: "Prints the CRDs DisruptionPolicy and HostUpdate, a namespace, the Lease for the election, and the RBAC and admission rules of hosts and " +
			"of the coordinator. None of these objects runs anything in the cluster. A comment explains each rule. If you change the name of the Lease, set it in " +
			"[lease] in the configuration of every host too.\n\n" +
			"With --policy it prints the policy lockkeeper-default, for all nodes that no other policy selects. It is separate because kubectl cannot " +
			"apply a policy before the API server knows the CRD, and because policies are yours: no upgrade changes them.\n\n" +
			"With --delete it prints all objects, in the order in which to delete them, for kubectl delete --ignore-not-found -f -. That deletes " +
			"your policies too. First let every node leave: `lockkeeper leave --all`.",
		Flags: append([]urfave.Flag{
			&urfave.BoolFlag{Name: "no-renewal", Usage: "do not let the coordinator renew its own token; you create each one", DisableDefaultText: true},
			&urfave.StringSliceFlag{Name: "audience", Usage: "a `URL` that the coordinator may request as audience when it renews its token (repeatable); default: those of https://kubernetes.default.svc"},
			&urfave.BoolFlag{Name: "policy", Usage: "print only the policy lockkeeper-default", DisableDefaultText: true},
			&urfave.BoolFlag{Name: "delete", Usage: "print what to delete from the cluster", DisableDefaultText: true},
		}, leaseFlags()...),
	}
}

// coordinatorKubeconfig is `lockkeeper kubeconfig`.
func coordinatorKubeconfig() *urfave.Command {
	return &urfave.Command{
		Name: "kubeconfig", Usage: "Create a kubeconfig for the coordinator", Action: kubeconfigCommand,
		Description: "Uses your own credential. The new kubeconfig is a secret, and contains all that a client needs. Put it at /etc/lockkeeper/coordinator.kubeconfig on the hosts that " +
			"may become the coordinator. Apply the manifests first.\n\n" +
			"It contains a token of the coordinator's service account. Each host renews its copy. The command tests whether the " +
			"token can be renewed, and prints what to do if it cannot.\n\n" +
			"With --csr it contains a client certificate, which hosts do not renew. If your credential may approve the " +
			"CertificateSigningRequest, the command does so. Otherwise it prints how another user can approve it, and waits.",
		Flags: append([]urfave.Flag{
			&urfave.StringFlag{Name: "lifetime", Usage: "how long it is valid, a `DURATION` from 1h to 365d", Value: "90d"},
			&urfave.BoolFlag{Name: "csr", Usage: "request a client certificate instead of a token", DisableDefaultText: true},
			&urfave.StringFlag{Name: "server", Usage: "`URL` at which hosts reach the API server, default the one in your kubeconfig"},
			&urfave.StringFlag{Name: "file", Usage: "write it to `FILE`, readable only by its owner, and not to standard output"},
		}, ConnectionFlags()...),
	}
}

func manifestsCommand(c *urfave.Context) error {
	render := manifests.Render
	switch {
	case c.Bool("policy") && c.Bool("delete"):
		return UsageError("--policy and --delete cannot be combined; --delete deletes the policies too")
	case c.Bool("policy"):
		_, err := c.App.Writer.Write(manifests.Policy())
		return err
	case c.Bool("delete"):
		render = manifests.Delete
	}
	namespace, lease := leaseNames(c)
	text, err := render(manifests.Options{
		Namespace: namespace, Lease: lease, NoRenewal: c.Bool("no-renewal"),
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
	from, err := caller(c)
	if err != nil {
		return err
	}
	namespace, _ := leaseNames(c)
	minted, err := credential.Mint(c.Context, credential.Options{
		Caller: from, Namespace: namespace, Lifetime: lifetime, Server: c.String("server"),
		Certificate: c.Bool("csr"), Tell: func(what string) { fmt.Fprintln(c.App.ErrWriter, "lockkeeper: "+what) },
	})
	if err != nil {
		return err
	}
	if file := c.String("file"); file != "" {
		err = secret.WriteFile(file, minted.Kubeconfig)
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
