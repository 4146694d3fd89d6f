package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// jwt is a token with these claims and no signature that anybody could check.
func jwt(claims string) string {
	enc := base64.RawURLEncoding.EncodeToString
	return enc([]byte(`{"alg":"none"}`)) + "." + enc([]byte(claims)) + "." + enc([]byte("x"))
}

const sub = `"sub":"system:serviceaccount:lockkeeper:lockkeeper-coordinator"`

func kubeconfigOf(user string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: https://a}}]\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: %s}]\n", user)
}

// selfSigned is a certificate in PEM, which nobody trusts.
func selfSigned(t *testing.T, name string, from, to time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: from, NotAfter: to}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// One hour from 2026-01-01T00:00:00Z.
const life = `"iat":1767225600,"exp":1767229200`

func TestInspect(t *testing.T) {
	dir := t.TempDir()
	pair := selfSigned(t, "lockkeeper:coordinator", time.Unix(1767225600, 0), time.Unix(1767229200, 0))
	if err := os.WriteFile(filepath.Join(dir, "pair.pem"), pair, 0o600); err != nil {
		t.Fatal(err)
	}
	inline := base64.StdEncoding.EncodeToString(pair)
	for name, c := range map[string]struct {
		user    string
		kind    Kind
		who     string
		life    time.Duration
		foreign string // part of it; "" is a credential that lockkeeper renews
	}{
		"minted":              {`{token: ` + jwt("{"+sub+","+life+"}") + `}`, KindToken, "system:serviceaccount:lockkeeper:lockkeeper-coordinator", time.Hour, ""},
		"another account":     {`{token: ` + jwt(`{"sub":"system:serviceaccount:lockkeeper:default",`+life+"}") + `}`, KindToken, "system:serviceaccount:lockkeeper:default", time.Hour, "its own service account's only"},
		"a person's":          {`{token: ` + jwt(`{"sub":"lockkeeper-coordinator",`+life+"}") + `}`, KindToken, "lockkeeper-coordinator", time.Hour, "its own service account's only"},
		"no namespace":        {`{token: ` + jwt(`{"sub":"system:serviceaccount::lockkeeper-coordinator",`+life+"}") + `}`, KindToken, "system:serviceaccount::lockkeeper-coordinator", time.Hour, "its own"},
		"for ever":            {`{token: ` + jwt("{"+sub+`,"iat":1767225600}`) + `}`, KindToken, "system:serviceaccount:lockkeeper:lockkeeper-coordinator", 0, "does not say how long"},
		"ends before it came": {`{token: ` + jwt("{"+sub+`,"iat":1767229200,"exp":1767225600}`) + `}`, KindToken, "system:serviceaccount:lockkeeper:lockkeeper-coordinator", -time.Hour, "does not say how long"},
		"a pod's":             {`{token: ` + jwt("{"+sub+","+life+`,"kubernetes.io":{"pod":{"name":"x"}}}`) + `}`, KindToken, "system:serviceaccount:lockkeeper:lockkeeper-coordinator", time.Hour, "bound to a pod"},
		"opaque":              {`{token: secret}`, KindToken, "", 0, "none that lockkeeper minted"},
		"not JSON":            {`{token: ` + jwt("{") + `}`, KindToken, "", 0, "none that lockkeeper minted"},
		"token and password":  {`{token: ` + jwt("{"+sub+","+life+"}") + `, username: a, password: b}`, KindOther, "", 0, "none that lockkeeper minted"},
		"for somebody else":   {`{token: ` + jwt("{"+sub+","+life+"}") + `, as: root}`, KindOther, "", 0, "none that lockkeeper minted"},
		"a file":              {`{tokenFile: /var/token}`, KindOther, "", 0, "in /var/token, which somebody else renews"},
		"a plugin":            {`{exec: {apiVersion: client.authentication.k8s.io/v1, command: get-token, interactiveMode: Never}}`, KindOther, "", 0, "plugin get-token renews it"},
		"nothing":             {`{}`, KindOther, "", 0, "none that lockkeeper minted"},
		"certificate":         {`{client-certificate-data: ` + inline + `, client-key-data: ` + inline + `}`, KindCertificate, "lockkeeper:coordinator", time.Hour, "somebody has to approve"},
		"certificate beside":  {`{client-certificate: pair.pem, client-key: pair.pem}`, KindCertificate, "lockkeeper:coordinator", time.Hour, "somebody has to approve"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, "kubeconfig")
			if err := os.WriteFile(path, []byte(kubeconfigOf(c.user)), 0o600); err != nil {
				t.Fatal(err)
			}
			info, _, err := ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if info.Kind != c.kind || info.User != c.who || info.Life() != c.life {
				t.Errorf("%s of %q for %v, want %s of %q for %v", info.Kind, info.User, info.Life(), c.kind, c.who, c.life)
			}
			if (info.Foreign == "") != (c.foreign == "") || !strings.Contains(info.Foreign, c.foreign) {
				t.Errorf("left alone because %q, want %q", info.Foreign, c.foreign)
			}
			if ours := info.Foreign == ""; (info.Namespace == "lockkeeper") != ours {
				t.Errorf("namespace %q of a credential that is ours: %t", info.Namespace, ours)
			}
		})
	}
}

// The frame is the same while only the token is another one.
func TestFrame(t *testing.T) {
	frame := func(text string) [32]byte {
		t.Helper()
		info, err := inspect("x", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return info.Frame
	}
	base := frame(kubeconfigOf(`{token: a}`))
	if frame("# a comment\n"+kubeconfigOf(`{token: b}`)) != base {
		t.Error("another token makes another frame")
	}
	for _, other := range []string{
		strings.Replace(kubeconfigOf(`{token: a}`), "https://a", "https://b", 1),
		kubeconfigOf(`{token: a, as: root}`), kubeconfigOf(`{tokenFile: a}`),
	} {
		if frame(other) == base {
			t.Errorf("the same frame for:\n%s", other)
		}
	}
}

func TestInspectSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "kubeconfig")
	if _, _, err := ReadFile(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	for text, want := range map[string]string{
		"clusters: 5\n": "kubeconfig " + path + ": ",
		"":              "no current context with a user",
		kubeconfigOf(`{client-certificate: none.pem}`):               "its client certificate: open " + dir + "/none.pem",
		kubeconfigOf(`{client-certificate-data: eHl6}`):              "no PEM block CERTIFICATE",
		kubeconfigOf(`{client-certificate: kubeconfig}`):             "no PEM block CERTIFICATE",
		strings.Repeat("# far too long for any kubeconfig\n", 1<<15): "is longer than 1048576 bytes",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := ReadFile(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}
