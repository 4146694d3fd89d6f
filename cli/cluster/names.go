package cluster

import (
	"context"
	"encoding/json"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// NodeNames returns the names of all nodes.
func (s *Source) NodeNames(ctx context.Context) ([]string, error) {
	return s.names(ctx, "/api/v1/nodes")
}

// PolicyNames returns the names of all policies.
func (s *Source) PolicyNames(ctx context.Context) ([]string, error) {
	return s.names(ctx, "/apis/"+v1alpha1.GroupVersion.String()+"/"+v1alpha1.PolicyResource.Resource)
}

// HookNames returns the names of the hooks that the turn of a node waits for.
func (s *Source) HookNames(ctx context.Context, node string) ([]string, error) {
	o, err := kube.Find(ctx, s.Client, node)
	if err != nil || o == nil {
		return nil, err
	}
	var names []string
	if n := turn.FromNode(o); n.InTurn() && n.Ours() {
		for _, h := range n.Grant.Terms.Hooks(n.State) {
			if n.Hooks[h.Name] != n.Turn {
				names = append(names, h.Name)
			}
		}
	}
	return names, nil
}

// names lists objects as a table, from the API server's cache. A table without the objects has some
// hundred bytes for each; five thousand Nodes have 50 MB.
func (s *Source) names(ctx context.Context, path string) ([]string, error) {
	text, err := s.Client.CoreV1().RESTClient().Get().AbsPath(path).
		SetHeader("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1").
		Param("includeObject", string(metav1.IncludeNone)).Param("resourceVersion", "0").
		Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	var table metav1.Table
	if err := json.Unmarshal(text, &table); err != nil {
		return nil, err
	}
	if table.Kind != "Table" {
		return nil, errors.New("the answer is not a table")
	}
	var names []string
	for _, row := range table.Rows {
		if len(row.Cells) > 0 {
			if name, ok := row.Cells[0].(string); ok {
				names = append(names, name)
			}
		}
	}
	return names, nil
}
