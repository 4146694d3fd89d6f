// Command gitopsdiff compares objects with those in a cluster by the code with which Argo CD decides whether an
// application is out of sync, gitops-engine. It prints each object that differs, and exits with 1 if there is one.
//
// It is a module of its own, because gitops-engine needs Kubernetes' own module with its replacements, which nothing
// else in the test bed does. The test in testbed/install builds and runs it.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/argoproj/gitops-engine/pkg/diff"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kube-openapi/pkg/util/proto"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "the cluster")
	mode := flag.String("mode", "", "three-way, structured-merge or server-side")
	manager := flag.String("manager", "argocd-controller", "the field manager that applied the objects")
	flag.Parse()
	differ, err := run(context.Background(), *kubeconfig, *mode, *manager, os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gitopsdiff:", err)
		os.Exit(2)
	}
	if differ > 0 {
		os.Exit(1)
	}
}

// cluster is where the live objects are. It makes server-side applies in dry runs for gitops-engine.
type cluster struct {
	client dynamic.Interface
	mapper *restmapper.DeferredDiscoveryRESTMapper
}

func (c *cluster) of(obj *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	gvk := obj.GroupVersionKind()
	mapping, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, err
	}
	if namespace := obj.GetNamespace(); namespace != "" {
		return c.client.Resource(mapping.Resource).Namespace(namespace), nil
	}
	return c.client.Resource(mapping.Resource), nil
}

// Run applies obj in a dry run, as Argo CD does, which forces conflicts.
func (c *cluster) Run(ctx context.Context, obj *unstructured.Unstructured, manager string) (string, error) {
	of, err := c.of(obj)
	if err != nil {
		return "", err
	}
	predicted, err := of.Apply(ctx, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: manager, Force: true, DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(predicted)
	return string(text), err
}

func run(ctx context.Context, kubeconfig, mode, manager string, in io.Reader, out io.Writer) (differ int, err error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return 0, err
	}
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return 0, err
	}
	discover, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return 0, err
	}
	c := &cluster{client: client, mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discover))}
	options, err := optionsOf(mode, manager, c, discover)
	if err != nil {
		return 0, err
	}
	decoder, compared := yaml.NewYAMLOrJSONDecoder(in, 4<<10), 0
	for {
		obj := &unstructured.Unstructured{}
		if err := decoder.Decode(obj); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return 0, err
		}
		name := obj.GetKind() + " " + obj.GetName()
		of, err := c.of(obj)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		live, err := of.Get(ctx, obj.GetName(), metav1.GetOptions{})
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		result, err := diff.Diff(obj, live, options...)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		compared++
		if result.Modified || !bytes.Equal(result.NormalizedLive, result.PredictedLive) {
			differ++
			fmt.Fprintf(out, "%s differs\nlive:     %s\nexpected: %s\n", name, result.NormalizedLive, result.PredictedLive)
		}
	}
	fmt.Fprintf(out, "%d objects compared, %d differ\n", compared, differ)
	return differ, nil
}

// optionsOf returns the options with which Argo CD compares: three-way by default, structured-merge for an application with
// ServerSideApply=true, server-side with ServerSideDiff=true.
func optionsOf(mode, manager string, c *cluster, discover discovery.OpenAPISchemaInterface) ([]diff.Option, error) {
	document, err := discover.OpenAPISchema()
	if err != nil {
		return nil, err
	}
	models, err := proto.NewOpenAPIData(document)
	if err != nil {
		return nil, err
	}
	parser, err := managedfields.NewGVKParser(models, false)
	if err != nil {
		return nil, err
	}
	options := []diff.Option{diff.WithManager(manager), diff.WithGVKParser(parser)}
	switch mode {
	case "three-way":
		return options, nil
	case "structured-merge":
		return append(options, diff.WithStructuredMergeDiff(true)), nil
	case "server-side":
		return append(options, diff.WithServerSideDiff(true), diff.WithServerSideDryRunner(c)), nil
	}
	return nil, fmt.Errorf("-mode %q, expected three-way, structured-merge or server-side", mode)
}
