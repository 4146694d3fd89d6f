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
// there is none, or the API server serves no such kind, and only the metadata of one
// whose status this version cannot decode.
func ReadHostUpdate(ctx context.Context, client *Client, node string) (*v1alpha1.HostUpdate, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	rest, err := client.ownKinds()
	if err != nil {
		return nil, err
	}
	answer, err := rest.Get().Resource(v1alpha1.HostUpdateResource.Resource).Name(node).Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	var u *v1alpha1.HostUpdate
	if err == nil {
		u, err = decodeHostUpdate(answer, node)
	}
	if err != nil {
		return nil, fmt.Errorf("reading hostupdate %s: %w", node, err)
	}
	return u, nil
}

// decodeHostUpdate decodes an answer that has to be a node's HostUpdate. Of one with
// a status that this version cannot decode it returns only the metadata: another
// version of lockkeeper wrote it, and the host writes it again.
func decodeHostUpdate(answer []byte, node string) (*v1alpha1.HostUpdate, error) {
	var head metav1.PartialObjectMetadata
	if err := json.Unmarshal(answer, &head); err != nil || head.Kind != "HostUpdate" || head.Name != node {
		return nil, fmt.Errorf("the answer is not this HostUpdate; does a proxy answer in the API server's place?")
	}
	u := &v1alpha1.HostUpdate{}
	if err := json.Unmarshal(answer, u); err != nil {
		u = &v1alpha1.HostUpdate{TypeMeta: head.TypeMeta, ObjectMeta: head.ObjectMeta}
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
	answer, err := rest.Patch(types.ApplyPatchType).Resource(v1alpha1.HostUpdateResource.Resource).Name(node).
		Param("fieldManager", FieldManager("host")).Param("force", "true").Body(body).Do(ctx).Raw()
	if err == nil {
		_, err = decodeHostUpdate(answer, node)
	}
	if err != nil {
		return fmt.Errorf("writing hostupdate %s: %w", node, err)
	}
	return nil
}
