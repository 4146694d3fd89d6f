package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// jwt returns a token with these claims and an invalid signature.
func jwt(claims string) string {
	enc := base64.RawURLEncoding.EncodeToString
	return enc([]byte(`{"alg":"none"}`)) + "." + enc([]byte(claims)) + "." + enc([]byte("x"))
}

const sub = `"sub":"system:serviceaccount:lockkeeper:lockkeeper-coordinator"`

func kubeconfigOf(user string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: https://a}}]\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: %s}]\n", user)
}

// selfSigned returns a self-signed certificate and its key in PEM.
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
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})...)
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
		who     string
		life    time.Duration
		foreign string // part of the reason; "" means that lockkeeper renews the credential
	}{
		"minted":              {`{token: ` + jwt("{"+sub+","+life+"}") + `}`, "system:serviceaccount:lockkeeper:lockkeeper-coordinator", time.Hour, ""},
		"another account":     {`{token: ` + jwt(`{"sub":"system:serviceaccount:lockkeeper:default",`+life+"}") + `}`, "system:serviceaccount:lockkeeper:default", time.Hour, "only those of its own service account"},
		"a person's":          {`{token: ` + jwt(`{"sub":"lockkeeper-coordinator",`+life+"}") + `}`, "lockkeeper-coordinator", time.Hour, "only those of its own service account"},
		"no namespace":        {`{token: ` + jwt(`{"sub":"system:serviceaccount::lockkeeper-coordinator",`+life+"}") + `}`, "system:serviceaccount::lockkeeper-coordinator", time.Hour, "only those of its own"},
		"indefinitely":        {`{token: ` + jwt("{"+sub+`,"iat":1767225600}`) + `}`, "system:serviceaccount:lockkeeper:lockkeeper-coordinator", 0, "does not say how long"},
		"ends before it came": {`{token: ` + jwt("{"+sub+`,"iat":1767229200,"exp":1767225600}`) + `}`, "system:serviceaccount:lockkeeper:lockkeeper-coordinator", -time.Hour, "does not say how long"},
		"a pod's":             {`{token: ` + jwt("{"+sub+","+life+`,"kubernetes.io":{"pod":{"name":"x"}}}`) + `}`, "system:serviceaccount:lockkeeper:lockkeeper-coordinator", time.Hour, "bound to a pod"},
		"opaque":              {`{token: secret}`, "", 0, "did not mint it"},
		"not JSON":            {`{token: ` + jwt("{") + `}`, "", 0, "did not mint it"},
		"for somebody else":   {`{token: ` + jwt("{"+sub+","+life+"}") + `, as: root}`, "", 0, "did not mint it"},
		"a file":              {`{tokenFile: /dev/null}`, "", 0, "in /dev/null, which another program renews"},
		"a plugin":            {`{exec: {apiVersion: client.authentication.k8s.io/v1, command: get-token, interactiveMode: Never}}`, "", 0, "plugin get-token renews it"},
		"nothing":             {`{}`, "", 0, "did not mint it"},
		"certificate":         {`{client-certificate-data: ` + inline + `, client-key-data: ` + inline + `}`, "lockkeeper:coordinator", time.Hour, "an administrator has to approve"},
		"certificate beside":  {`{client-certificate: pair.pem, client-key: pair.pem}`, "lockkeeper:coordinator", time.Hour, "an administrator has to approve"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, "kubeconfig")
			if err := os.WriteFile(path, []byte(kubeconfigOf(c.user)), 0o600); err != nil {
				t.Fatal(err)
			}
			k, err := readKubeconfig(path, "")
			if err != nil {
				t.Fatal(err)
			}
			info := k.claims
			if info.user != c.who || info.life() != c.life {
				t.Errorf("user %q for %v, expected %q for %v", info.user, info.life(), c.who, c.life)
			}
			if (info.notRenewed == "") != (c.foreign == "") || !strings.Contains(info.notRenewed, c.foreign) {
				t.Errorf("not renewed because %q, expected %q", info.notRenewed, c.foreign)
			}
			if ours := info.notRenewed == ""; (info.namespace == "lockkeeper") != ours {
				t.Errorf("namespace %q, credential of lockkeeper: %t", info.namespace, ours)
			}
		})
	}
}

// TestTarget checks that the target stays the same if only the token, or the certificate, of the same account changes.
func TestTarget(t *testing.T) {
	target := func(text string) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "kubeconfig")
		must(t, os.WriteFile(path, []byte(text), 0o600))
		k, err := readKubeconfig(path, "")
		must(t, err)
		return k.target()
	}
	pair := func(name string) string {
		inline := base64.StdEncoding.EncodeToString(selfSigned(t, name, time.Now(), time.Now().Add(time.Hour)))
		return kubeconfigOf(`{client-certificate-data: ` + inline + `, client-key-data: ` + inline + `}`)
	}
	minted := func(claims string) string { return kubeconfigOf(`{token: ` + jwt(claims) + `}`) }
	ours, opaque := minted("{"+sub+","+life+"}"), kubeconfigOf(`{token: a}`)
	ca := base64.StdEncoding.EncodeToString(selfSigned(t, "ca", time.Now(), time.Now().Add(time.Hour)))
	for name, c := range map[string]struct {
		a, b string
		same bool
	}{
		"another token of the account":     {ours, "# a comment\n" + minted("{"+sub+`,"iat":1767225600,"exp":1767229300}`), true},
		"another account":                  {ours, minted(`{"sub":"system:serviceaccount:lockkeeper:default",` + life + "}"), false},
		"a token that names no account":    {opaque, kubeconfigOf(`{token: b}`), false},
		"the same token, another comment":  {opaque, "# a comment\n" + opaque, true},
		"another certificate of the name":  {pair("a"), pair("a"), true},
		"a certificate of another name":    {pair("a"), pair("b"), false},
		"another server":                   {ours, strings.Replace(ours, "https://a", "https://b", 1), false},
		"another certificate authority":    {ours, strings.Replace(ours, "{server: ", "{certificate-authority-data: "+ca+", server: ", 1), false},
		"another name for the certificate": {ours, strings.Replace(ours, "{server: ", "{tls-server-name: x, server: ", 1), false},
		"a proxy":                          {ours, strings.Replace(ours, "{server: ", "{proxy-url: \"http://p\", server: ", 1), false},
		"impersonation":                    {opaque, kubeconfigOf(`{token: a, as: root}`), false},
		"a token in a file":                {opaque, kubeconfigOf(`{tokenFile: /dev/null}`), false},
		"another plugin": {kubeconfigOf(`{exec: {apiVersion: client.authentication.k8s.io/v1, command: get-token, interactiveMode: Never}}`),
			kubeconfigOf(`{exec: {apiVersion: client.authentication.k8s.io/v1, command: get-token, args: [x], interactiveMode: Never}}`), false},
	} {
		if got := target(c.a) == target(c.b); got != c.same {
			t.Errorf("%s: the same: %t, want %t", name, got, c.same)
		}
	}
}

func TestInspectSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "kubeconfig")
	for text, want := range map[string]string{
		"clusters: 5\n": "kubeconfig " + path + ": ",
		"":              "no current context with a cluster and a user",
		kubeconfigOf(`{token: a, username: a, password: b}`):         "more than one authentication method found for u",
		kubeconfigOf(`{client-certificate: none.pem}`):               "its client certificate: open " + dir + "/none.pem",
		kubeconfigOf(`{client-certificate-data: eHl6}`):              "the client certificate in " + path + " and its key: tls: failed to find any PEM data",
		kubeconfigOf(`{client-certificate: kubeconfig}`):             "the client certificate in " + path + " and its key: tls: failed to find any PEM data",
		strings.Repeat("# far too long for any kubeconfig\n", 1<<15): "is larger than 1024 KiB",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readKubeconfig(path, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}

// A time that JSON cannot hold would keep the local status from being written.
func TestClaimAfterYear9999(t *testing.T) {
	for exp, want := range map[string]string{"253402300799": "9999-12-31T23:59:59Z", "253402300800": "0001-01-01T00:00:00Z", "999999999999": "0001-01-01T00:00:00Z"} {
		expires := inspectToken(jwt(`{"sub":"ops","iat":1767225600,"exp":` + exp + `}`)).expires
		if text, err := expires.MarshalText(); err != nil || string(text) != want {
			t.Errorf("exp %s: %s, %v, expected %s", exp, text, err, want)
		}
	}
}
