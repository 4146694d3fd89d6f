package cli

import (
	"fmt"
	"time"

	urfave "github.com/urfave/cli/v2"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
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
			"apply a policy before the API server knows the CRD, and because policies are yours: no upgrade changes them.",
		Flags: []urfave.Flag{
			namespaceFlag(),
			&urfave.StringFlag{Name: "lease", Usage: "`NAME` of the Lease in it", Value: v1alpha1.DefaultLeaseName},
			&urfave.BoolFlag{Name: "no-renewal", Usage: "do not let the coordinator renew its own token; you create each one", DisableDefaultText: true},
			&urfave.StringSliceFlag{Name: "audience", Usage: "a `URL` that the coordinator may request as audience when it renews its token (repeatable); default: those of https://kubernetes.default.svc"},
			&urfave.BoolFlag{Name: "policy", Usage: "print only the policy lockkeeper-default", DisableDefaultText: true},
		},
	}
}

func namespaceFlag() urfave.Flag {
	return &urfave.StringFlag{Name: "namespace", Usage: "`NAME` of lockkeeper's namespace", Value: v1alpha1.DefaultLeaseNamespace}
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
		Flags: []urfave.Flag{
			kubeconfigFlag(),
			&urfave.StringFlag{Name: "context", Usage: "`NAME` of a context in your kubeconfig, default the current one"},
			namespaceFlag(),
			&urfave.StringFlag{Name: "lifetime", Usage: "how long it is valid, a `DURATION` from 1h to 365d", Value: "90d"},
			&urfave.BoolFlag{Name: "csr", Usage: "request a client certificate instead of a token", DisableDefaultText: true},
			&urfave.StringFlag{Name: "server", Usage: "`URL` at which hosts reach the API server, default the one in your kubeconfig"},
			&urfave.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "write it to `FILE`, readable only by its owner, and not to standard output"},
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
