package object

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// HostUpdates reads and writes the HostUpdate of one Node.
type HostUpdates struct {
	Client *Client
	Node   string
}

// Read is [ReadHostUpdate].
func (h HostUpdates) Read(ctx context.Context) (*v1alpha1.HostUpdate, error) {
	return ReadHostUpdate(ctx, h.Client, h.Node)
}

// ReadHostUpdate reads the HostUpdate of a Node. It returns nil, and no error, if
// there is none, or the API server serves no such kind.
func ReadHostUpdate(ctx context.Context, client *Client, node string) (*v1alpha1.HostUpdate, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	rest, err := client.ownKinds()
	if err != nil {
		return nil, err
	}
	u := &v1alpha1.HostUpdate{}
	err = rest.Get().Resource(v1alpha1.HostUpdateResource.Resource).Name(node).Do(ctx).Into(u)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err == nil && u.Name != node:
		err = fmt.Errorf("the answer is not this HostUpdate; does a proxy answer in the API server's place?")
	}
	if err != nil {
		return nil, fmt.Errorf("reading hostupdate %s: %w", node, err)
	}
	return u, nil
}

// updatesPage is how many HostUpdates one LIST returns; each is a few kilobytes.
const updatesPage = 500

// ListHostUpdates reads all HostUpdates. There are none where the API server serves
// no such kind.
func ListHostUpdates(ctx context.Context, client *Client) ([]v1alpha1.HostUpdate, error) {
	rest, err := client.ownKinds()
	if err != nil {
		return nil, err
	}
	var all []v1alpha1.HostUpdate
	o := metav1.ListOptions{Limit: updatesPage}
	for {
		list := &v1alpha1.HostUpdateList{}
		err := rest.Get().Resource(v1alpha1.HostUpdateResource.Resource).VersionedParams(&o, metav1.ParameterCodec).Timeout(Timeout).Do(ctx).Into(list)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("listing hostupdates: %w", err)
		}
		all = append(all, list.Items...)
		if o.Continue = list.Continue; o.Continue == "" {
			return all, nil
		}
	}
}

// Write applies the HostUpdate, and creates it if there is none. Only the Node's own
// host may; uid, the Node's, makes the Node the owner. It is server-side apply, so
// that a field that is missing in the status is removed. Repeating it does no harm.
func (h HostUpdates) Write(ctx context.Context, uid string, status *v1alpha1.HostUpdateStatus) error {
	client, node := h.Client, h.Node
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	rest, err := client.ownKinds()
	if err != nil {
		return err
	}
	body, err := json.Marshal(&v1alpha1.HostUpdate{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "HostUpdate"},
		ObjectMeta: metav1.ObjectMeta{Name: node, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(uid)},
		}},
		Status: *status,
	})
	if err != nil {
		return fmt.Errorf("encoding hostupdate %s: %w", node, err)
	}
	err = rest.Patch(types.ApplyPatchType).Resource(v1alpha1.HostUpdateResource.Resource).Name(node).
		Param("fieldManager", FieldManager("host")).Param("force", "true").Body(body).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("writing hostupdate %s: %w", node, err)
	}
	return nil
}
