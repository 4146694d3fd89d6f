package kube

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestWriteLeavesOut: what the API server's schema refuses is left out, the rest is written, and nothing is sent without end. The messages are
// those of a real API server; the test bed has one.
func TestWriteLeavesOut(t *testing.T) {
	const (
		typed   = `{"kind":"Status","apiVersion":"v1","status":"Failure","message":%q,"code":500}`
		invalid = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","message":"x","details":{"name":"n1","causes":[%s]},"code":422}`
	)
	cause := func(field string) string {
		return fmt.Sprintf(`{"reason":"FieldValueNotSupported","message":"x","field":%q}`, field)
	}
	for name, c := range map[string]struct {
		answers []string // to the first requests; the ones after that succeed
		leftOut []string
		status  string // that is stored
		fails   string
	}{
		"nothing": {nil, nil, `{"wants":"reboot","blockers":[{"kind":"Pod","name":"a"},{"kind":"Hook","name":"b"}]}`, ""},
		"a field that the schema lacks": {
			[]string{fmt.Sprintf(typed, `failed to create typed patch object (/n1; lockkeeper.dev/v1alpha1, Kind=HostUpdate): .status.blockers[0].name: field not declared in schema`)},
			[]string{"status.blockers.name"}, `{"wants":"reboot","blockers":[{"kind":"Pod"},{"kind":"Hook"}]}`, ""},
		"two fields": {
			[]string{fmt.Sprintf(typed, "errors:\n  .status.wants: field not declared in schema\n  .status.blockers[1].name: field not declared in schema")},
			[]string{"status.wants", "status.blockers.name"}, `{"blockers":[{"kind":"Pod"},{"kind":"Hook"}]}`, ""},
		"a value that the schema lacks, in a field that it requires": {
			[]string{fmt.Sprintf(invalid, cause("status.blockers[1].kind")), fmt.Sprintf(invalid, cause("status.blockers[0].kind")+","+cause("status.blockers[1].kind"))},
			[]string{"status.blockers.kind", "status.blockers"}, `{"wants":"reboot"}`, ""},
		"what the status has not": {
			[]string{fmt.Sprintf(invalid, cause("status.none")), fmt.Sprintf(invalid, cause("status"))}, nil, "", "it is not in the status"},
		"another refusal":         {[]string{`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"no","code":403}`}, nil, "", "writing hostupdate n1: no"},
		"refused again and again": {slices.Repeat([]string{fmt.Sprintf(invalid, cause("status.wants")+","+cause("status.blockers"))}, 20), nil, "", "it is not in the status"},
		"a page of a proxy":       {[]string{`.status.wants: field not declared in schema`}, nil, "", "writing hostupdate n1: "},
	} {
		t.Run(name, func(t *testing.T) {
			requests, stored := 0, ""
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				w.Header().Set("Content-Type", "application/json")
				if requests++; requests <= len(c.answers) {
					answer := c.answers[requests-1]
					var s metav1.Status
					if json.Unmarshal([]byte(answer), &s) != nil {
						w.Header().Set("Content-Type", "text/html")
						s.Code = http.StatusBadGateway
					}
					w.WriteHeader(int(s.Code))
					fmt.Fprint(w, answer)
					return
				}
				stored = string(body)
				_, _ = w.Write(body)
			}))
			defer server.Close()
			client, err := ConnectConfig(&rest.Config{Host: server.URL}, "host", "v0", -1, 0)
			if err != nil {
				t.Fatal(err)
			}
			var leftOut []string
			err = HostUpdates{Client: client, Node: "n1", LeftOut: func(fields []string) { leftOut = fields }}.Write(t.Context(), "u1", &v1alpha1.HostUpdateStatus{
				Wants: v1alpha1.WantsReboot, Blockers: []v1alpha1.Blocker{{Kind: "Pod", Name: "a"}, {Kind: "Hook", Name: "b"}},
			})
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) || requests > maxLeftOut+1 {
					t.Errorf("after %d requests: %v, want %q", requests, err, c.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got struct {
				Metadata metav1.ObjectMeta
				Status   map[string]any
			}
			if err := json.Unmarshal([]byte(stored), &got); err != nil {
				t.Fatal(err)
			}
			for _, b := range listOf(got.Status["blockers"]) {
				delete(b.(map[string]any), "since") // a time that the schema requires
			}
			var want map[string]any
			if err := json.Unmarshal([]byte(c.status), &want); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got.Status, want) || !slices.Equal(leftOut, c.leftOut) || len(got.Metadata.OwnerReferences) != 1 {
				t.Errorf("stored %s, left out %q; want %s and %q", stored, leftOut, c.status, c.leftOut)
			}
		})
	}
}

func listOf(v any) []any {
	list, _ := v.([]any)
	return list
}
