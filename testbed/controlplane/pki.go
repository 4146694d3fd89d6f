package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/workdir"
)

// certLife is longer than the life of any testbed's control plane.
const certLife = 365 * 24 * time.Hour

// authority signs the API server's certificate and those of its users.
type authority struct {
	cert    *x509.Certificate
	key     *ecdsa.PrivateKey
	certPEM []byte
}

// keyPair is a certificate with its key, both in PEM.
type keyPair struct{ cert, key []byte }

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("creating the CA's key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "lockkeeper testbed"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(certLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("signing the CA's certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parsing the CA's certificate: %w", err)
	}
	return &authority{cert: cert, key: key, certPEM: pemBlock("CERTIFICATE", der)}, nil
}

// server signs a certificate for a server on the loopback address and on further addresses of this machine.
func (a *authority) server(name string, more []netip.Addr) (keyPair, error) {
	addresses := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	for _, addr := range more {
		addresses = append(addresses, addr.AsSlice())
	}
	return a.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses: addresses,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

// client signs a certificate for a Kubernetes user: the common name is the user, the organizations are the groups.
func (a *authority) client(user string, groups []string) (keyPair, error) {
	return a.clientUntil(user, groups, a.cert.NotAfter)
}

func (a *authority) clientUntil(user string, groups []string, end time.Time) (keyPair, error) {
	return a.signUntil(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, end)
}

func (a *authority) sign(template *x509.Certificate) (keyPair, error) {
	return a.signUntil(template, a.cert.NotAfter)
}

func (a *authority) signUntil(template *x509.Certificate, end time.Time) (keyPair, error) {
	name := template.Subject.CommonName
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return keyPair{}, fmt.Errorf("creating a key for %s: %w", name, err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return keyPair{}, fmt.Errorf("creating a serial number for %s: %w", name, err)
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = a.cert.NotBefore, end
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return keyPair{}, fmt.Errorf("signing a certificate for %s: %w", name, err)
	}
	keyPEM, err := keyPEM(key)
	if err != nil {
		return keyPair{}, fmt.Errorf("encoding the key of %s: %w", name, err)
	}
	return keyPair{cert: pemBlock("CERTIFICATE", der), key: keyPEM}, nil
}

// newSigningKey creates the key pair for service account tokens.
func newSigningKey() (private, public []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("creating the key for service accounts: %w", err)
	}
	private, err = keyPEM(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the key for service accounts: %w", err)
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the public key for service accounts: %w", err)
	}
	return private, pemBlock("PUBLIC KEY", der), nil
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pemBlock("EC PRIVATE KEY", der), nil
}

func pemBlock(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// writePKI writes the files that the API server and the controller manager read.
func (a *authority) writePKI(dir *workdir.Dir, addresses []netip.Addr) error {
	if err := os.Mkdir(dir.Join("pki"), 0o700); err != nil {
		return fmt.Errorf("creating the directory for keys: %w", err)
	}
	server, err := a.server("kube-apiserver", addresses)
	if err != nil {
		return err
	}
	private, public, err := newSigningKey()
	if err != nil {
		return err
	}
	caKey, err := keyPEM(a.key) // the controller manager signs certificates with it
	if err != nil {
		return fmt.Errorf("encoding the CA's key: %w", err)
	}
	for name, data := range map[string][]byte{
		"ca.crt": a.certPEM, "ca.key": caKey, "apiserver.crt": server.cert, "apiserver.key": server.key, "sa.key": private, "sa.pub": public,
	} {
		if err := os.WriteFile(dir.Join("pki", name), data, 0o600); err != nil {
			return fmt.Errorf("writing a key: %w", err)
		}
	}
	return nil
}
