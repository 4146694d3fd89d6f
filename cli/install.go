package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	urfave "github.com/urfave/cli/v2"
	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/yaml"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/cluster"
	"lockkeeper.dev/lockkeeper/cli/credential"
	"lockkeeper.dev/lockkeeper/cli/page"
	"lockkeeper.dev/lockkeeper/cli/report"
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
			"With --without-lease it leaves out the Lease, for GitOps tools: some apply no Leases, and the others would create it again after you have deleted it to " +
			"stop the cluster. Create it once: `lockkeeper init`.\n\n" +
			"With --policy it prints the policy lockkeeper-default, for all nodes that no other policy selects. It is separate because kubectl cannot " +
			"apply a policy before the API server knows the CRD, and because policies are yours: no upgrade changes them.\n\n" +
			"With --delete it prints all objects, in the order in which to delete them, for kubectl delete --ignore-not-found -f -. That deletes " +
			"your policies too. First let every node leave: `lockkeeper leave --all`.",
		Flags: append([]urfave.Flag{
			&urfave.BoolFlag{Name: "no-renewal", Usage: "do not let the coordinator renew its own token; you create each one", DisableDefaultText: true},
			&urfave.StringSliceFlag{Name: "audience", Usage: "a `URL` that the coordinator may request as audience when it renews its token (repeatable); default: those of https://kubernetes.default.svc"},
			&urfave.BoolFlag{Name: "without-lease", Usage: "leave out the Lease, which `lockkeeper init` creates; for GitOps", DisableDefaultText: true},
			&urfave.BoolFlag{Name: "policy", Usage: "print only the policy lockkeeper-default", DisableDefaultText: true},
			&urfave.BoolFlag{Name: "delete", Usage: "print what to delete from the cluster", DisableDefaultText: true},
		}, leaseFlags()...),
	}
}

// initWithin is the default of init's --timeout. A GitOps tool usually applies the manifests within three minutes.
const initWithin = 5 * time.Minute

// initialize is `lockkeeper init`.
func initialize() *urfave.Command {
	formats := outputFlags(report.Text, report.Name, report.YAML, report.JSON)
	return &urfave.Command{
		Name: "init", Usage: "Create the Lease for the election, once for each cluster", Action: initCommand,
		Description: "For clusters whose manifests are applied by a GitOps tool, without the Lease: `lockkeeper manifests --without-lease`. Creates the Lease with your own " +
			"credential, and nothing else. You can run it before the manifests are applied: it waits for the namespace. A Lease that exists is never changed.\n\n" +
			"A missing Lease is a stop. If lockkeeper has run in the cluster, a user may have deleted the Lease to stop it, and creating it ends that stop. The " +
			"command then says so and asks; in a script, add --yes.\n\n" +
			"Your credential must be allowed to get and create leases in the namespace, and to list nodes and disruptionpolicies." + seeExitStatus,
		Flags: append([]urfave.Flag{
			formats[0], // a single object has no table with headers
			&urfave.StringFlag{Name: "timeout", Usage: "how long to wait for the namespace, a `DURATION` from 1s to 720h; default " + v1alpha1.ShortDuration(initWithin)},
			dryRunFlag(),
			&urfave.BoolFlag{Name: "yes", Usage: "create the Lease without asking, even if that ends a stop", DisableDefaultText: true},
		}, ConnectionFlags()...),
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
	case c.Bool("without-lease") && (c.Bool("policy") || c.Bool("delete")):
		return UsageError("--without-lease cannot be combined with --policy, which prints no Lease, or with --delete, which deletes the Lease too")
	case c.Bool("policy"):
		_, err := c.App.Writer.Write(manifests.Policy())
		return err
	case c.Bool("delete"):
		render = manifests.Delete
	}
	namespace, lease := leaseNames(c)
	text, err := render(manifests.Options{
		Namespace: namespace, Lease: lease, NoRenewal: c.Bool("no-renewal"), WithoutLease: c.Bool("without-lease"),
		Audiences: c.StringSlice("audience"),
	})
	if err != nil {
		return UsageError("%v", err)
	}
	_, err = c.App.Writer.Write(text)
	return err
}

func initCommand(c *urfave.Context) error {
	timeout := initWithin
	if c.IsSet("timeout") {
		var err error
		if timeout, err = parseDuration(c, "timeout", maxWait); err != nil {
			return err
		}
	}
	s, err := source(c)
	if err != nil {
		return err
	}
	l, err := manifests.Lease(manifests.Options{Namespace: s.Namespace, Lease: s.LeaseName})
	if err != nil {
		return UsageError("%v", err)
	}
	tell := func(what string) { fmt.Fprintln(c.App.ErrWriter, "lockkeeper: "+what) }
	ended := ""
	l, created, err := s.Init(c.Context, cluster.InitOptions{Lease: l, Tell: tell, Within: timeout, DryRun: c.Bool("dry-run"), Confirm: func(why string) error {
		tell(fmt.Sprintf("Lease %s/%s does not exist, and %s. If a user deleted the Lease to stop this cluster, creating it ends the stop.", s.Namespace, s.LeaseName, why))
		ended = "If turns were stopped because it was missing, they continue as soon as an instance holds it.\n"
		if c.Bool("yes") || c.Bool("dry-run") {
			return nil
		}
		return confirmed(c, "init would create Lease "+s.Namespace+"/"+s.LeaseName, "create it")
	}})
	switch {
	case errors.Is(err, cluster.ErrTimeout):
		fmt.Fprintf(c.App.ErrWriter, "lockkeeper: timed out after %s; nothing was created\n", v1alpha1.ShortDuration(timeout))
		return exitStatus(report.ExitTimeout)
	case errors.Is(err, context.Canceled):
		return errors.New("interrupted; run the command again to see whether the Lease exists")
	case err != nil:
		return err
	}
	return printLease(c, l, created, ended)
}

// printLease prints the Lease as -o asks for it, or what happened to it and what to do next.
func printLease(c *urfave.Context, l *coordinationv1.Lease, created bool, ended string) error {
	l.APIVersion, l.Kind = coordinationv1.SchemeGroupVersion.String(), "Lease" // the client drops them
	l.ManagedFields = nil
	var text []byte
	var err error
	switch report.Format(c.String("output")) {
	case report.Name:
		text = []byte("lease." + coordinationv1.GroupName + "/" + l.Name + "\n")
	case report.YAML:
		text, err = yaml.Marshal(l)
	case report.JSON:
		text, err = json.MarshalIndent(l, "", "  ")
		text = append(text, '\n')
	default:
		text = []byte(leaseText(c, l, created, ended))
	}
	if err != nil {
		return fmt.Errorf("encoding the Lease: %w", err)
	}
	_, err = c.App.Writer.Write(text)
	return err
}

// leaseText says what happened to the Lease and what to do next.
func leaseText(c *urfave.Context, l *coordinationv1.Lease, created bool, ended string) string {
	name, own := l.Namespace+"/"+l.Name, printer(c).Own
	switch {
	case created && c.Bool("dry-run"):
		return "Lease " + name + " would be created. Dry run, nothing is changed.\n"
	case created:
		return "Lease " + name + " created. " + ended +
			"Next, if you have not done so: apply `lockkeeper manifests --without-lease`, install lockkeeper on the hosts, and create the coordinator's credential:\n" +
			"  lockkeeper kubeconfig" + own + " --file coordinator.kubeconfig\n"
	}
	text := "Lease " + name + " exists, nothing was changed."
	if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" {
		text += " No instance holds it."
	} else {
		text += " Its holder: " + page.Cell(*l.Spec.HolderIdentity)
	}
	if why, stopped := l.Annotations[v1alpha1.AnnotationStop]; stopped {
		text += "\nThe emergency stop is set: " + page.Cell(why)
	}
	return text + "\nTo see the fleet: lockkeeper status" + own + "\n"
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
	file := c.String("file")
	if file != "" {
		// Another admin may approve a certificate hours later. It would be lost if only then the file could not be written.
		probe, err := secret.Create(file)
		if err != nil {
			return err
		}
		probe.Discard()
	}
	namespace, _ := leaseNames(c)
	minted, err := credential.Mint(c.Context, credential.Options{
		Caller: from, Namespace: namespace, Lifetime: lifetime, Server: c.String("server"),
		Certificate: c.Bool("csr"), Kubectl: printer(c).Kubectl, Tell: func(what string) { fmt.Fprintln(c.App.ErrWriter, "lockkeeper: "+what) },
	})
	if err != nil {
		return err
	}
	if file != "" {
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
