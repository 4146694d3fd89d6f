package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// HostUpdates reads and writes the HostUpdate of one Node.
type HostUpdates struct {
	Client *Client
	Node   string
	// LeftOut, if not nil, is called after each write with the fields that were left out of the status,
	// such as "status.blockers.kind", because the API server's schema refuses them.
	LeftOut func(fields []string)
}

// Read is [ReadHostUpdate]. Of a HostUpdate with a status that this version cannot decode
// it returns only the metadata, and no error: the host writes the status again.
func (h HostUpdates) Read(ctx context.Context) (*v1alpha1.HostUpdate, error) {
	u, err := ReadHostUpdate(ctx, h.Client, h.Node)
	if _, undecodable := errors.AsType[*UndecodableError](err); undecodable {
		return u, nil
	}
	return u, err
}

// UndecodableError says that this version of lockkeeper cannot decode the status of a
// HostUpdate.
type UndecodableError struct {
	Node  string
	Field string // the first one that cannot be decoded: "status.history"
	Err   error  // what is wrong with it
}

// Error names the object and the field, and says what it means.
func (e *UndecodableError) Error() string {
	return fmt.Sprintf("HostUpdate %s: this version of lockkeeper cannot decode %s: %v; another version wrote it, and what it says is not shown",
		e.Node, e.Field, v1alpha1.OneLine(e.Err.Error(), v1alpha1.MaxUpdateText))
}

// Unwrap returns what is wrong with the field.
func (e *UndecodableError) Unwrap() error { return e.Err }

// ReadHostUpdate reads the HostUpdate of a Node. It returns nil, and no error, if
// there is none, or the API server serves no such kind. With an [UndecodableError] it
// returns the metadata.
func ReadHostUpdate(ctx context.Context, client *Client, node string) (*v1alpha1.HostUpdate, error) {
	ctx, cancel := within(ctx, client)
	defer cancel()
	rest, err := client.OwnKinds()
	if err != nil {
		return nil, err
	}
	answer, err := rawAnswer(rest.Get().Resource(v1alpha1.HostUpdateResource.Resource).Name(node).Do(ctx))
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading hostupdate %s: %w", node, err)
	}
	u, err := decodeHostUpdate(answer)
	if !isHostUpdate(u, node) {
		return nil, fmt.Errorf("reading hostupdate %s: %w", node, errNotHostUpdate)
	}
	return u, err
}

// rawAnswer returns the body of an answer. Raw's own error lacks the API server's message.
func rawAnswer(result rest.Result) ([]byte, error) {
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}

// DeleteHostUpdate deletes the HostUpdate of a Node. found is false if there is none, or if the API
// server serves no such kind.
func DeleteHostUpdate(ctx context.Context, client *Client, node string) (found bool, err error) {
	ctx, cancel := within(ctx, client)
	defer cancel()
	rest, err := client.OwnKinds()
	if err != nil {
		return false, err
	}
	err = rest.Delete().Resource(v1alpha1.HostUpdateResource.Resource).Name(node).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("deleting hostupdate %s: %w", node, err)
	}
	return true, nil
}

var errNotHostUpdate = errors.New("the answer is not this HostUpdate; does a proxy answer in the API server's place?")

func isHostUpdate(u *v1alpha1.HostUpdate, node string) bool {
	return u != nil && u.Kind == "HostUpdate" && u.Name == node
}

// decodeHostUpdate decodes a HostUpdate. It returns nil for what is no object. The error
// is an [UndecodableError]; with one, the result has only the metadata.
func decodeHostUpdate(text []byte) (*v1alpha1.HostUpdate, error) {
	var head metav1.PartialObjectMetadata
	if err := json.Unmarshal(text, &head); err != nil {
		return nil, &UndecodableError{Node: "(unknown)", Field: "metadata", Err: err}
	}
	u := &v1alpha1.HostUpdate{}
	err := json.Unmarshal(text, u)
	if err == nil {
		return u, nil
	}
	e := &UndecodableError{Node: v1alpha1.OneLine(head.Name, v1alpha1.MaxUpdateName), Field: "status", Err: err}
	var fields struct {
		Status map[string]json.RawMessage `json:"status"`
	}
	if json.Unmarshal(text, &fields) == nil {
		for _, name := range slices.Sorted(maps.Keys(fields.Status)) {
			one, _ := json.Marshal(map[string]json.RawMessage{name: fields.Status[name]})
			if err := json.Unmarshal(one, &v1alpha1.HostUpdateStatus{}); err != nil {
				e.Field, e.Err = "status."+v1alpha1.OneLine(name, v1alpha1.MaxUpdateName), err
				break
			}
		}
	}
	return &v1alpha1.HostUpdate{TypeMeta: head.TypeMeta, ObjectMeta: head.ObjectMeta}, e
}

// updatesPage is how many HostUpdates one LIST returns; each is a few kilobytes.
const updatesPage = 500

// ListHostUpdates reads all HostUpdates. There are none where the API server serves
// no such kind. Those that this version cannot decode are left out; undecodable says
// which they are.
func ListHostUpdates(ctx context.Context, client *Client) (all []v1alpha1.HostUpdate, undecodable []error, err error) {
	rest, err := client.OwnKinds()
	if err != nil {
		return nil, nil, err
	}
	o := metav1.ListOptions{Limit: updatesPage}
	for {
		answer, err := rawAnswer(rest.Get().Resource(v1alpha1.HostUpdateResource.Resource).VersionedParams(&o, metav1.ParameterCodec).Timeout(Timeout).Do(ctx))
		if apierrors.IsNotFound(err) {
			return nil, nil, nil
		}
		var list struct {
			Kind            string `json:"kind"`
			metav1.ListMeta `json:"metadata"`
			Items           []json.RawMessage `json:"items"`
		}
		if err == nil && (json.Unmarshal(answer, &list) != nil || list.Kind != "HostUpdateList") {
			err = errors.New("the answer is not a list of HostUpdates; does a proxy answer in the API server's place?")
		}
		if err != nil {
			return nil, nil, fmt.Errorf("listing hostupdates: %w", err)
		}
		for _, item := range list.Items {
			if u, err := decodeHostUpdate(item); err != nil {
				undecodable = append(undecodable, err)
			} else {
				all = append(all, *u)
			}
		}
		if o.Continue = list.Continue; o.Continue == "" {
			return all, undecodable, nil
		}
	}
}

// maxLeftOut bounds how many fields one Write leaves out, each after one more request.
const maxLeftOut = 8

// Write applies the HostUpdate, and creates it if there is none. Only the Node's own
// host may; uid, the Node's, makes the Node the owner. It is server-side apply, so
// that a field that is missing in the status is removed. Repeating it does no harm.
//
// The manifests may be older than the host. Then the schema may lack a field or a value of it, for
// which the API server refuses the whole object. Write leaves such fields out, and writes the rest.
func (h HostUpdates) Write(ctx context.Context, uid string, status *v1alpha1.HostUpdateStatus) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	body, err := json.Marshal(&v1alpha1.HostUpdate{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "HostUpdate"},
		ObjectMeta: metav1.ObjectMeta{Name: h.Node, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: h.Node, UID: types.UID(uid)},
		}},
		Status: *status,
	})
	if err != nil {
		return fmt.Errorf("encoding hostupdate %s: %w", h.Node, err)
	}
	var leftOut []string
	for {
		if err = h.apply(ctx, body); err == nil {
			if h.LeftOut != nil {
				h.LeftOut(leftOut)
			}
			return nil
		}
		fields := refusedFields(err)
		if len(fields) == 0 || len(leftOut)+len(fields) > maxLeftOut {
			return fmt.Errorf("writing hostupdate %s: %w", h.Node, err)
		}
		for _, field := range fields {
			smaller, dropped, dropErr := dropField(body, field)
			if dropErr != nil {
				return fmt.Errorf("writing hostupdate %s: %w (leaving out %s: %w)", h.Node, err, field, dropErr)
			}
			body, leftOut = smaller, append(leftOut, dropped)
		}
	}
}

// apply sends a HostUpdate once.
func (h HostUpdates) apply(ctx context.Context, body []byte) error {
	rest, err := h.Client.OwnKinds()
	if err != nil {
		return err
	}
	answer, err := rawAnswer(rest.Patch(types.ApplyPatchType).Resource(v1alpha1.HostUpdateResource.Resource).Name(h.Node).
		Param("fieldManager", FieldManager("host")).Param("force", "true").Body(body).Do(ctx))
	if err != nil {
		return err
	}
	if u, _ := decodeHostUpdate(answer); !isHostUpdate(u, h.Node) {
		return errNotHostUpdate
	}
	return nil
}

// undeclared finds the fields in the API server's message about a server-side apply with fields that the schema
// lacks: ".status.blockers[0].kind: field not declared in schema".
var undeclared = regexp.MustCompile(`\.(status\.[^\s:]+): field not declared in schema`)

// listItem is the index or the key of an item in the path of a field.
var listItem = regexp.MustCompile(`\[[^\]]*\]`)

// refusedFields returns the fields of the status that the API server's answer says its schema refuses,
// each once, without the items of lists: "status.blockers.kind".
func refusedFields(err error) (fields []string) {
	s := serverStatus(err)
	if s == nil {
		return nil
	}
	add := func(field string) {
		field = listItem.ReplaceAllString(field, "")
		if strings.HasPrefix(field, "status.") && !slices.Contains(fields, field) {
			fields = append(fields, field)
		}
	}
	for _, m := range undeclared.FindAllStringSubmatch(s.Message, maxLeftOut) {
		add(m[1])
	}
	if s.Reason == metav1.StatusReasonInvalid && s.Details != nil {
		for _, cause := range s.Details.Causes {
			add(cause.Field)
		}
	}
	return fields
}

// dropField removes a field from a JSON object, from all items where its path goes through a list. If the
// field is not there, because the object lacks what the schema requires, it removes the field around
// it. dropped is what it removed.
func dropField(body []byte, field string) (smaller []byte, dropped string, err error) {
	var obj map[string]any
	if err := json.Unmarshal(body, &obj); err != nil {
		return nil, "", err
	}
	path := strings.Split(field, ".")
	for ; len(path) > 1; path = path[:len(path)-1] {
		if deleteAt(obj, path) {
			smaller, err = json.Marshal(obj)
			return smaller, strings.Join(path, "."), err
		}
	}
	return nil, "", errors.New("it is not in the status")
}

// deleteAt removes what is at a path, which goes through all items of lists, and reports whether it was there.
func deleteAt(value any, path []string) (found bool) {
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			found = deleteAt(item, path) || found
		}
	case map[string]any:
		if len(path) > 1 {
			return deleteAt(v[path[0]], path[1:])
		}
		_, found = v[path[0]]
		delete(v, path[0])
	}
	return found
}
