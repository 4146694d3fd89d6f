package apiserver

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// typesOf knows the Go types of all kinds except the custom ones.
var typesOf = scheme.Scheme

const (
	mediaJSON  = "application/json"
	mediaProto = "application/vnd.kubernetes.protobuf"
)

// item is one version of an object. It does not change, except that its encodings are added under the server's lock.
type item struct {
	obj  runtime.Object
	u    object // obj in unstructured form
	rev  int64
	enc  map[encoding][]byte
	name string // namespace/name, or name: the key in the store
	// managed is the content of metadata.managedFields, which u does not have.
	managed []owner
}

// encoding names one way to encode an item. raw is a protobuf message without its envelope, or JSON.
type encoding struct {
	k     *kind
	media string
}

// newItem returns an item of the unstructured object. An error means that the object does not fit its Go type.
func newItem(k *kind, u object) (*item, error) {
	it := &item{u: u, enc: map[encoding][]byte{}, name: text(u, "metadata", "name")}
	if k.namespaced {
		it.name = text(u, "metadata", "namespace") + "/" + it.name
	}
	if k.custom {
		it.obj = &unstructured.Unstructured{Object: maps.Clone(u)}
		it.obj.(*unstructured.Unstructured).Object["metadata"] = maps.Clone(child(u, "metadata"))
		return it, nil
	}
	k = kindOf(k.stored())
	obj, err := k.newObject()
	if err != nil {
		return nil, err
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u, obj); err != nil {
		return nil, err
	}
	// This normalizes what has several spellings, and drops unknown fields.
	if it.u, err = runtime.DefaultUnstructuredConverter.ToUnstructured(obj); err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(k.gvk())
	it.obj, it.u["apiVersion"], it.u["kind"] = obj, k.gvr.GroupVersion().String(), k.kind
	return it, nil
}

// raw returns the item as JSON, or as a protobuf message without an envelope.
func (it *item) raw(k *kind, media string) []byte {
	key := encoding{k, media}
	if b, ok := it.enc[key]; ok {
		return b
	}
	obj := it.obj
	if k.event {
		obj = it.asEvent(k)
	}
	var b []byte
	var err error
	if media == mediaProto {
		b, err = obj.(interface{ Marshal() ([]byte, error) }).Marshal()
	} else {
		b, err = json.Marshal(obj)
	}
	if err != nil {
		panic(fmt.Sprintf("encoding a stored %s: %v", k.kind, err))
	}
	it.enc[key] = b
	return b
}

// asEvent returns a stored Event as one of events.k8s.io.
func (it *item) asEvent(k *kind) runtime.Object {
	obj, err := k.newObject()
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(toEvents(it.u), obj)
	}
	if err != nil {
		panic(fmt.Sprintf("converting a stored Event: %v", err))
	}
	obj.GetObjectKind().SetGroupVersionKind(k.gvk())
	obj.(metav1.Object).SetManagedFields(it.obj.(metav1.Object).GetManagedFields())
	return obj
}

// encode returns the item as the body of an answer.
func (it *item) encode(k *kind, media string) []byte {
	b := it.raw(k, media)
	if media == mediaProto {
		return envelope(k.gvr.GroupVersion().String(), k.kind, b)
	}
	return b
}

// envelope wraps a protobuf message as k8s.io/apimachinery/pkg/runtime/serializer/protobuf does: a magic number, and a
// runtime.Unknown.
func envelope(apiVersion, kind string, raw []byte) []byte {
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: apiVersion, Kind: kind}, Raw: raw}
	b, err := u.Marshal()
	if err != nil {
		panic(err)
	}
	return append([]byte("k8s\x00"), b...)
}

// encodeList returns a list as the body of an answer. All lists have their metadata in field 1, and their items in field 2.
func encodeList(k *kind, media string, meta metav1.ListMeta, items []*item) []byte {
	gv := k.gvr.GroupVersion().String()
	if media == mediaProto {
		m, err := meta.Marshal()
		if err != nil {
			panic(err)
		}
		b := appendField(nil, 1, m)
		for _, it := range items {
			b = appendField(b, 2, it.raw(k, media))
		}
		return envelope(gv, k.listKind(), b)
	}
	m, err := json.Marshal(meta)
	if err != nil {
		panic(err)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"kind":%q,"apiVersion":%q,"metadata":%s,"items":[`, k.listKind(), gv, m)
	// The items of a typed list do not repeat their kind.
	typed := fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,`, k.kind, gv)
	for i, it := range items {
		if i > 0 {
			b.WriteByte(',')
		}
		raw := it.raw(k, media)
		if !k.custom && bytes.HasPrefix(raw, typed) {
			b.WriteByte('{')
			raw = raw[len(typed):]
		}
		b.Write(raw)
	}
	b.WriteString("]}")
	return b.Bytes()
}

// appendField appends a field of a protobuf message.
func appendField(b []byte, number int, value []byte) []byte {
	b = binary.AppendUvarint(b, uint64(number)<<3|2)
	b = binary.AppendUvarint(b, uint64(len(value)))
	return append(b, value...)
}

// encodeObject returns an object that is not stored, such as a Status, as the body of an answer.
func encodeObject(media string, obj runtime.Object) []byte {
	gvk := obj.GetObjectKind().GroupVersionKind()
	if p, ok := obj.(interface{ Marshal() ([]byte, error) }); ok && media == mediaProto {
		b, err := p.Marshal()
		if err != nil {
			panic(err)
		}
		return envelope(gvk.GroupVersion().String(), gvk.Kind, b)
	}
	b, err := json.Marshal(obj)
	if err != nil {
		panic(err)
	}
	return b
}

// frame returns an event of a watch, as one element of the stream. raw is the event's encoded object.
func frame(media, kind string, raw []byte) []byte {
	if media == mediaProto {
		b, err := (&metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: raw}}).Marshal()
		if err != nil {
			panic(err)
		}
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
	}
	return fmt.Appendf(nil, "{\"type\":%q,\"object\":%s}\n", kind, raw)
}

// decode reads the body of a request into unstructured form. The object must be of the kind.
func decode(k *kind, contentType string, body []byte) (object, error) {
	u, err := decodeAny(contentType, body)
	if err != nil {
		return nil, err
	}
	gv := k.gvr.GroupVersion().String()
	if was := text(u, "apiVersion"); was != "" && was != gv {
		return nil, fmt.Errorf("the API version in the data (%s) does not match the expected API version (%s)", was, gv)
	}
	if was := text(u, "kind"); was != "" && was != k.kind {
		return nil, fmt.Errorf("%s %s cannot be handled as a %s", gv, was, k.kind)
	}
	u["apiVersion"], u["kind"] = gv, k.kind
	return u, nil
}

// decodeAny reads an object of any kind into unstructured form.
func decodeAny(contentType string, body []byte) (object, error) {
	switch contentType {
	case mediaProto:
		obj, gvk, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			return nil, err
		}
		u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
		if err != nil {
			return nil, err
		}
		u["apiVersion"], u["kind"] = gvk.GroupVersion().String(), gvk.Kind
		return u, nil
	case "application/yaml", "application/apply-patch+yaml":
		if json.Valid(body) { // what client-go sends, as a rule
			break
		}
		var err error
		if body, err = yaml.YAMLToJSON(body); err != nil {
			return nil, err
		}
	}
	u := object{}
	if err := utiljson.Unmarshal(body, &u); err != nil {
		return nil, err
	}
	if u == nil {
		return nil, errors.New("the body is not an object")
	}
	return u, nil
}
