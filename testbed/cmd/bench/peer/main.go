// Command peer is the program to which `make bench` compares lockkeeper: a minimal Go program that uses client-go. It
// gets one Node, sends READY=1 to its service manager, and follows that Node until it is stopped.
//
// The program knows nothing of lockkeeper. Usage: peer KUBECONFIG NODE.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if len(os.Args) != 3 {
		return fmt.Errorf("usage: peer KUBECONFIG NODE")
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	if err != nil {
		return err
	}
	config.UserAgent = "lockkeeper-bench-peer"
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Nodes().Get(ctx, os.Args[2], metav1.GetOptions{}); err != nil {
		return err
	}
	if err := ready(); err != nil {
		return err
	}
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, os.Args[2])
	lw := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", metav1.NamespaceAll, only)
	cache.NewReflector(lw, &corev1.Node{}, cache.NewStore(cache.MetaNamespaceKeyFunc), 0).RunWithContext(ctx)
	return ctx.Err()
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
