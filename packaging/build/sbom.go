package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// A bom is a software bill of materials: as much of CycloneDX 1.5's JSON form as
// is said of a Go program.
type bom struct {
	Format       string       `json:"bomFormat"`
	Spec         string       `json:"specVersion"`
	Version      int          `json:"version"`
	Serial       string       `json:"serialNumber"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Timestamp string    `json:"timestamp"`
	Component component `json:"component"`
}

type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl,omitempty"`
	Hashes  []hash `json:"hashes,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn"`
}

// sbom writes the bill of a binary, from what the linker wrote into it: the
// modules whose code is in it, and the Go release.
func (b *build) sbom(binary, to string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	sum, err := sha256Of(binary)
	if err != nil {
		return err
	}
	data, err := json.MarshalIndent(billOf(info, b.version, sum, b.at), "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(to, append(data, '\n'), 0o644)
}

func billOf(info *debug.BuildInfo, version, sum string, at time.Time) bom {
	main := component{
		Type: "application", Ref: "lockkeeper", Name: "lockkeeper", Version: version,
		PURL: "pkg:golang/" + info.Main.Path + "@" + version, Hashes: []hash{{"SHA-256", sum}},
	}
	release := strings.TrimPrefix(info.GoVersion, "go")
	parts := []component{{Type: "library", Ref: "pkg:golang/std@" + release, Name: "std", Version: release, PURL: "pkg:golang/std@" + release}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		purl := "pkg:golang/" + m.Path + "@" + strings.ReplaceAll(m.Version, "+", "%2B")
		parts = append(parts, component{Type: "library", Ref: purl, Name: m.Path, Version: m.Version, PURL: purl})
	}
	slices.SortFunc(parts, func(a, b component) int { return cmp.Compare(a.Ref, b.Ref) })
	all := dependency{Ref: main.Ref, DependsOn: []string{}}
	for _, c := range parts {
		all.DependsOn = append(all.DependsOn, c.Ref)
	}
	return bom{
		Format: "CycloneDX", Spec: "1.5", Version: 1, Serial: serial(sum),
		Metadata:   metadata{Timestamp: at.Format(time.RFC3339), Component: main},
		Components: parts, Dependencies: []dependency{all},
	}
}

// serial is a UUID that goes with the binary: the same binary has the same.
func serial(sum string) string {
	h := sha256.Sum256([]byte("lockkeeper's bill of materials of " + sum))
	u := h[:16]
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80 // version 8, made by our own rule
	x := hex.EncodeToString(u)
	return fmt.Sprintf("urn:uuid:%s-%s-%s-%s-%s", x[:8], x[8:12], x[12:16], x[16:20], x[20:])
}
