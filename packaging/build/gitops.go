package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// In the chart's templates, these names stand for what a user of the chart chooses.
const (
	anyNamespace = "namespace-of-the-release"
	anyLease     = "lease-of-the-values"
	anyAudience  = "audience-of-the-values"
)

// gitops makes the Helm chart with the index that lets the directory be used as a chart repository, and the kustomize
// base. Their objects are those of `lockkeeper manifests --without-lease`. The chart lacks the Namespace, which
// Helm creates itself if it is asked to. The policy is in neither: its kind has to be there before.
func (b *build) gitops(ctx context.Context, made string) error {
	base, err := b.printed(ctx, "--without-lease")
	if err != nil {
		return err
	}
	stage := filepath.Join(b.stage, "gitops")
	if err := os.MkdirAll(stage, 0o755); err != nil {
		return err
	}
	objects := filepath.Join(stage, "base.yaml")
	if err := os.WriteFile(objects, base, 0o644); err != nil {
		return err
	}
	if err := b.pack(filepath.Join(made, fmt.Sprintf("lockkeeper-kustomize-%s.tar.gz", b.version)),
		[]member{{"lockkeeper/kustomization.yaml", "packaging/gitops/kustomization.yaml", 0o644}, {"lockkeeper/lockkeeper.yaml", objects, 0o644}}); err != nil {
		return err
	}
	version := strings.ReplaceAll(b.version, "~", "-") // Helm wants a semantic version
	chart, err := fill("packaging/gitops/chart/Chart.yaml", version)
	if err != nil {
		return err
	}
	templates, err := b.templates(ctx)
	if err != nil {
		return err
	}
	header, objects := filepath.Join(stage, "Chart.yaml"), filepath.Join(stage, "templates.yaml")
	if err := os.WriteFile(header, []byte(chart), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(objects, []byte(templates), 0o644); err != nil {
		return err
	}
	const in = "packaging/gitops/chart/"
	name := fmt.Sprintf("lockkeeper-%s.tgz", version)
	if err := b.pack(filepath.Join(made, name), []member{
		{"lockkeeper/Chart.yaml", header, 0o644},
		{"lockkeeper/values.yaml", in + "values.yaml", 0o644},
		{"lockkeeper/values.schema.json", in + "values.schema.json", 0o644},
		{"lockkeeper/templates/NOTES.txt", in + "templates/NOTES.txt", 0o644},
		{"lockkeeper/templates/lockkeeper.yaml", objects, 0o644},
		{"lockkeeper/LICENSE", "LICENSE", 0o644},
	}); err != nil {
		return err
	}
	return b.chartIndex(made, name, chart)
}

// chartIndex writes the index of a chart repository with one chart.
func (b *build) chartIndex(made, name, chart string) error {
	sum, err := sha256Of(filepath.Join(made, name))
	if err != nil {
		return err
	}
	at := b.at.Format(time.RFC3339)
	_, chart, _ = strings.Cut(chart, "\n") // without the comment
	index := fmt.Sprintf("apiVersion: v1\ngenerated: %q\nentries:\n  lockkeeper:\n  - created: %q\n    digest: %s\n    urls: [%q]\n%s\n",
		at, at, sum, b.url+"/"+name, indent(chart, 4))
	return os.WriteFile(filepath.Join(made, "index.yaml"), []byte(index), 0o644)
}

// templates returns the manifests as a template of Helm. A document that depends on a value is there in both forms.
func (b *build) templates(ctx context.Context) (string, error) {
	var variants [3][]string
	for i, args := range [][]string{nil, {"--no-renewal"}, {"--audience", anyAudience}} {
		text, err := b.printed(ctx, append([]string{"--without-lease", "--namespace", anyNamespace, "--lease", anyLease}, args...)...)
		if err != nil {
			return "", err
		}
		variants[i] = strings.Split(string(text), "\n---\n")
	}
	documents, noRenewal, audiences := variants[0], variants[1], variants[2]
	if len(documents) != len(noRenewal) || len(documents) != len(audiences) {
		return "", fmt.Errorf("the manifests have %d documents, and %d and %d with other flags", len(documents), len(noRenewal), len(audiences))
	}
	var chosen []string
	for i, d := range documents {
		switch {
		case strings.Contains(d, "\nkind: Namespace\n"):
			continue
		case strings.Contains(d, "\nkind: CustomResourceDefinition\n"):
			// Helm never upgrades what is in a chart's directory crds. This annotation keeps it from deleting the kinds, and with
			// them all policies.
			const annotations = "\n  annotations:\n"
			if !strings.Contains(d, annotations) {
				return "", fmt.Errorf("a CustomResourceDefinition has no annotations:\n%.200s", d)
			}
			d = strings.Replace(d, annotations, annotations+"    helm.sh/resource-policy: keep\n", 1)
		case d != noRenewal[i]:
			d = either(".Values.renewal", d, noRenewal[i])
		case d != audiences[i]:
			d = either(".Values.audiences", audiences[i], d)
		}
		chosen = append(chosen, d)
	}
	return strings.NewReplacer(
		anyNamespace, "{{ .Release.Namespace }}",
		anyLease, "{{ .Values.lease }}",
		anyAudience, `{{ join "\", \"" .Values.audiences }}`,
	).Replace(strings.Join(chosen, "\n---\n")), nil
}

// either returns a template that is one of two texts.
func either(condition, then, otherwise string) string {
	return fmt.Sprintf("{{- if %s }}\n%s\n{{- else }}\n%s\n{{- end }}", condition, then, otherwise)
}

// manifests writes what the cluster needs next to the packages: the manifests, and the policy to begin with.
func (b *build) manifests(ctx context.Context, made string) error {
	for name, args := range map[string][]string{"manifests": nil, "policy": {"--policy"}} {
		text, err := b.printed(ctx, args...)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(made, fmt.Sprintf("lockkeeper-%s-%s.yaml", name, b.version)), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// printed returns what `lockkeeper manifests` prints.
func (b *build) printed(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"run", "-trimpath", "-buildvcs=false", ".", "manifests"}, args...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("lockkeeper manifests %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return text, nil
}
