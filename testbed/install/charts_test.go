package install

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	apisyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

const (
	chartForm     = "lockkeeper-%s.tgz"
	kustomizeForm = "lockkeeper-kustomize-%s.tar.gz"
)

// template does what `helm template lockkeeper FILE -n NAMESPACE` does, by Helm's own packages. It returns the objects, and the notes.
func template(t *testing.T, chart, namespace string, values map[string]any) (objects, notes string, err error) {
	t.Helper()
	c, err := loader.Load(chart)
	must(t, err)
	release := common.ReleaseOptions{Name: "lockkeeper", Namespace: namespace, IsInstall: true}
	all, err := util.ToRenderValues(c, values, release, common.DefaultCapabilities) // it checks them by the chart's schema
	if err != nil {
		return "", "", err
	}
	files, err := engine.Render(c, all)
	must(t, err)
	const notesFile = "lockkeeper/templates/NOTES.txt"
	notes = files[notesFile]
	delete(files, notesFile)
	return strings.Join(slices.Collect(maps.Values(files)), "\n---\n"), notes, nil
}

// objectsOf returns the objects in a text, as YAML with sorted keys, by kind, namespace and name.
func objectsOf(t *testing.T, text string) map[string]string {
	t.Helper()
	objects := map[string]string{}
	for decoder := apisyaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4<<10); ; {
		var o map[string]any
		err := decoder.Decode(&o)
		if errors.Is(err, io.EOF) {
			return objects
		}
		must(t, err)
		if len(o) == 0 {
			continue // only comments
		}
		m, _ := o["metadata"].(map[string]any)
		key := fmt.Sprint(o["kind"], " ", m["namespace"], " ", m["name"])
		if _, ok := objects[key]; ok {
			t.Errorf("two objects are %s", key)
		}
		data, err := yaml.Marshal(o)
		must(t, err)
		objects[key] = string(data)
	}
}

// sameObjects compares two sets of objects.
func sameObjects(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	if len(want) < 30 {
		t.Fatalf("%s: %d objects are expected, which are too few", what, len(want))
	}
	for key, w := range want {
		if g := got[key]; g != w {
			t.Errorf("%s: %s is\n%s\nexpected\n%s", what, key, g, w)
		}
	}
	for key := range got {
		if _, ok := want[key]; !ok {
			t.Errorf("%s: %s is not one of lockkeeper's manifests", what, key)
		}
	}
}

// TestChart compares what Helm makes of the chart with what the command prints. The chart has no Namespace, and Helm keeps the kinds when it
// uninstalls it.
func TestChart(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "host")
	members(t, artefact(dist(t), "lockkeeper_%s_linux_amd64.tar.gz", v1), bin)
	chart := artefact(dist(t), chartForm, v1)
	if got, want := strings.Join(members(t, chart, t.TempDir()), " "), "lockkeeper/Chart.yaml lockkeeper/values.yaml lockkeeper/values.schema.json "+
		"lockkeeper/templates/NOTES.txt lockkeeper/templates/lockkeeper.yaml lockkeeper/LICENSE"; got != want {
		t.Errorf("the chart has %s, expected %s", got, want)
	}
	for name, c := range map[string]struct {
		namespace string
		values    map[string]any
		flags     []string
	}{
		"defaults":     {"lockkeeper", nil, nil},
		"other names":  {"reboots", map[string]any{"lease": "the-lock.example"}, []string{"--namespace", "reboots", "--lease", "the-lock.example"}},
		"no renewal":   {"lockkeeper", map[string]any{"renewal": false}, []string{"--no-renewal"}},
		"its audience": {"lockkeeper", map[string]any{"audiences": []any{"https://a.example", "b&c<d"}}, []string{"--audience", "https://a.example", "--audience", "b&c<d"}},
	} {
		text, notes, err := template(t, chart, c.namespace, c.values)
		must(t, err)
		got := objectsOf(t, text)
		want := objectsOf(t, mustRun(t, filepath.Join(bin, "lockkeeper"), append([]string{"manifests", "--without-lease"}, c.flags...)...))
		namespace := "Namespace <nil> " + c.namespace
		if want[namespace] == "" {
			t.Errorf("%s: the manifests have no %q", name, namespace)
		}
		delete(want, namespace)
		for _, kind := range []string{"disruptionpolicies", "hostupdates"} {
			const keep = "    helm.sh/resource-policy: keep\n"
			key := "CustomResourceDefinition <nil> " + kind + ".lockkeeper.dev"
			if !strings.Contains(got[key], keep) {
				t.Errorf("%s: Helm would delete %s", name, key)
			}
			got[key] = strings.Replace(got[key], keep, "", 1)
		}
		sameObjects(t, name, got, want)
		lease, _ := c.values["lease"].(string)
		if lease == "" {
			lease = "lockkeeper"
		}
		if command := "lockkeeper init -n " + c.namespace + " --lease " + lease + "\n"; !strings.Contains(notes, command) {
			t.Errorf("%s: the notes do not say %q:\n%s", name, command, notes)
		}
	}
	for name, c := range map[string]struct {
		values map[string]any
		says   string
	}{
		"an unknown value": {map[string]any{"leaseName": "x"}, "leaseName"},
		"no name":          {map[string]any{"lease": "Not_a_name"}, "/lease"},
		"no boolean":       {map[string]any{"renewal": "no"}, "/renewal"},
		"an expression":    {map[string]any{"audiences": []any{`x"] || true || a in ["`}}, "/audiences/0"},
	} {
		if _, _, err := template(t, chart, "lockkeeper", c.values); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, expected an error about %s", name, err, c.says)
		}
	}
}

// TestChartIndex reads the index with which Helm, Flux and Argo CD find the chart.
func TestChartIndex(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(dist(t), "index.yaml"))
	must(t, err)
	var index struct {
		APIVersion string
		Entries    map[string][]struct {
			APIVersion, Name, Version, AppVersion, Digest, KubeVersion string
			URLs                                                       []string
		}
	}
	must(t, yaml.Unmarshal(data, &index))
	charts := index.Entries["lockkeeper"]
	if index.APIVersion != "v1" || len(index.Entries) != 1 || len(charts) != 1 {
		t.Fatalf("the index is\n%s", data)
	}
	name := fmt.Sprintf(chartForm, v1)
	c := charts[0]
	if c.APIVersion != "v2" || c.Name != "lockkeeper" || c.Version != "1.2.3" || c.AppVersion != "1.2.3" || !slices.Equal(c.URLs, []string{publishedAt + "/" + name}) ||
		c.Digest != sumOf(t, filepath.Join(dist(t), name)) {
		t.Errorf("the index has %+v", c)
	}
	if _, err := os.Stat(artefact(next(t), chartForm, "1.3.0-rc.1")); err != nil {
		t.Errorf("Helm wants semantic versions: %v", err)
	}
}

// TestKustomizeBase builds the base with kubectl's kustomize.
func TestKustomizeBase(t *testing.T) {
	dir := t.TempDir()
	if got, want := strings.Join(members(t, artefact(dist(t), kustomizeForm, v1), dir), " "), "lockkeeper/kustomization.yaml lockkeeper/lockkeeper.yaml"; got != want {
		t.Errorf("the archive has %s, expected %s", got, want)
	}
	members(t, artefact(dist(t), "lockkeeper_%s_linux_amd64.tar.gz", v1), filepath.Join(dir, "host"))
	want := mustRun(t, filepath.Join(dir, "host", "lockkeeper"), "manifests", "--without-lease")
	sameObjects(t, "the base", objectsOf(t, mustRun(t, examplePlane().Binaries().Kubectl, "kustomize", filepath.Join(dir, "lockkeeper"))), objectsOf(t, want))
}
