package apiserver

import (
	"fmt"
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
	u := runtime.DeepCopyJSON(old.u)
	switch kind := types.PatchType(q.contentType); {
	case kind == types.MergePatchType:
		mergePatch(u, patch)
	case kind == types.StrategicMergePatchType && !q.k.custom:
		like, err := kindOf(q.k.stored()).newObject()
		if err != nil {
			return nil, err
		}
		if u, err = strategicpatch.StrategicMergeMapPatch(u, patch, like); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	default:
		return nil, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "patch", q.k.resource(), q.name,
			fmt.Sprintf("the body of the request was in an unknown format - accepted media types include: %s", types.MergePatchType), 0, false)
	}
	if _, err := newItem(q.k, runtime.DeepCopyJSON(u)); err != nil {
		return nil, apierrors.NewInvalid(q.k.groupKind(), q.name, field.ErrorList{field.Invalid(field.NewPath("patch"), string(q.body), err.Error())})
	}
	return u, nil
}

// mergePatch applies a JSON merge patch (RFC 7386) to u.
func mergePatch(u, patch object) {
	for k, v := range patch {
		m, isMap := v.(object)
		switch {
		case v == nil:
			delete(u, k)
		case isMap:
			was, ok := u[k].(object)
			if !ok {
				was = object{}
				u[k] = was
			}
			mergePatch(was, m)
		default:
			u[k] = v
		}
	}
}
