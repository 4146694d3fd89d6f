// Command peer is the program to which `make bench` compares lockkeeper: a minimal Go program of the same libraries. It
// gets one Node, sends READY=1 to its service manager, and follows that Node until it is stopped. With --lease it also
// stands for election, as a candidate of lockkeeper's does; that is linked in any case. With --answer it follows all
// Nodes, and when the annotation bench/ask of one changes, it writes bench/answer: the least that a controller does.
// With the build tag host it also does what every program does that follows a host's update engine (host.go).
//
// The program knows nothing of lockkeeper. Usage: peer [--lease NAME] [--answer] KUBECONFIG NODE.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// asHost is what the build tag host adds, until ctx ends.
var asHost func(ctx context.Context, config *rest.Config) error

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	app := &cli.App{
		Name: "peer", Usage: "follow a Node", ArgsUsage: "KUBECONFIG NODE",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "lease", Usage: "stand for election by this Lease in kube-system"},
			&cli.BoolFlag{Name: "answer", Usage: "follow all Nodes, and answer what asks"},
		},
		Action: run,
	}
	if err := app.RunContext(ctx, os.Args); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

func run(c *cli.Context) error {
	ctx, node := c.Context, c.Args().Get(1)
	if c.NArg() != 2 {
		return errors.New("usage: peer KUBECONFIG NODE")
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.Args().First())
	if err != nil {
		return err
	}
	config.UserAgent = "lockkeeper-bench-peer"
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := core.NewForConfig(config)
	if err != nil {
		return err
	}
	if _, err := client.Nodes().Get(ctx, node, metav1.GetOptions{}); err != nil {
		return err
	}
	if err := ready(); err != nil {
		return err
	}
	if asHost != nil {
		go func() {
			if err := asHost(ctx, config); err != nil && ctx.Err() == nil {
				fmt.Fprintln(os.Stderr, "peer:", err)
				os.Exit(1)
			}
		}()
	}
	if name := c.String("lease"); name != "" {
		if err := elect(ctx, config, name, node); err != nil {
			return err
		}
	}
	only, store := fields.OneTermEqualSelector(metav1.ObjectNameField, node), cache.NewStore(cache.MetaNamespaceKeyFunc)
	if c.Bool("answer") {
		only, store = fields.Everything(), &answerer{Store: store, nodes: client.Nodes(), ctx: ctx}
	}
	lw := cache.NewListWatchFromClient(client.RESTClient(), "nodes", metav1.NamespaceAll, only)
	cache.NewReflector(lw, &corev1.Node{}, store, 0).RunWithContext(ctx)
	return ctx.Err()
}

// answerer is a store that answers what the Nodes in it ask.
type answerer struct {
	cache.Store
	nodes core.NodeInterface
	ctx   context.Context
}

func (a *answerer) Update(obj any) error {
	n := obj.(*corev1.Node)
	if ask := n.Annotations["bench/ask"]; ask != n.Annotations["bench/answer"] {
		patch := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q,"annotations":{"bench/answer":%q}}}`, n.ResourceVersion, ask)
		if _, err := a.nodes.Patch(a.ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			fmt.Fprintln(os.Stderr, "peer:", err)
		}
	}
	return a.Store.Update(obj)
}

// elect stands for election in the background.
func elect(ctx context.Context, config *rest.Config, lease, id string) error {
	client, err := coordination.NewForConfig(config)
	if err != nil {
		return err
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: lease}, Client: client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: id},
		},
		LeaseDuration: 30 * time.Second, RenewDeadline: 20 * time.Second, RetryPeriod: 5 * time.Second,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return err
	}
	go elector.Run(ctx)
	return nil
}

// ready sends READY=1 of sd_notify.
func ready() error {
	conn, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte("READY=1"))
	return err
}
