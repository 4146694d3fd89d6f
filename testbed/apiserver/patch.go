package apiserver

import (
	"fmt"
	"maps"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// patch answers a PATCH. JSON patches are not supported.
func (s *Server) patch(q *request) (*answer, error) {
	old, err := s.find(q)
	if types.PatchType(q.contentType) == types.ApplyPatchType {
		q.verb = "apply"
		it, err := s.apply(q, old)
		if err != nil {
			return nil, err
		}
		code := http.StatusOK
		if old == nil {
			code = http.StatusCreated
		}
		return q.found(code, it), nil
	}
	if err != nil {
		return nil, err
	}
	u, err := q.patched(old)
	if err != nil {
		return nil, err
	}
	meta := child(u, "metadata")
	if name := text(meta, "name"); name != q.name {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", name, q.name))
	}
	if uid := text(meta, "uid"); uid != "" && uid != text(old.u, "metadata", "uid") {
		return nil, apierrors.NewInvalid(q.k.groupKind(), q.name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "uid"), uid, "field is immutable")})
	}
	it, err := s.replace(q, old, u)
	if err != nil {
		return nil, err
	}
	return q.found(http.StatusOK, it), nil
}

// patched returns the object with the patch of the request.
func (q *request) patched(old *item) (object, error) {
	patch := object{}
	if err := utiljson.Unmarshal(q.body, &patch); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if q.k.event {
		patch = toCore(patch)
	}
	switch kind := types.PatchType(q.contentType); {
	case kind == types.MergePatchType:
		return mergePatch(old.u, patch), nil
	case kind == types.StrategicMergePatchType && !q.k.custom:
		like, err := kindOf(q.k.stored()).newObject()
		if err != nil {
			return nil, err
		}
		u, err := strategicpatch.StrategicMergeMapPatch(runtime.DeepCopyJSON(old.u), patch, like)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return u, nil
	}
	return nil, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "patch", q.k.resource(), q.name,
		fmt.Sprintf("the body of the request was in an unknown format - accepted media types include: %s", types.MergePatchType), 0, false)
}

// mergePatch returns u with a JSON merge patch (RFC 7386). The result shares with u what the patch does not change.
func mergePatch(u, patch object) object {
	out := object{}
	maps.Copy(out, u)
	for k, v := range patch {
		m, isMap := v.(object)
		switch {
		case v == nil:
			delete(out, k)
		case isMap:
			was, _ := out[k].(object)
			out[k] = mergePatch(was, m)
		default:
			out[k] = v
		}
	}
	return out
}
