package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Files are where a host has the coordinator's credential.
type Files struct {
	// Kubeconfig is the administrator's file, which lockkeeper only reads. A host
	// without it has no credential.
	Kubeconfig string
	// Renewed is lockkeeper's own file, in the service's state directory. It has
	// the token that this host received in place of the one in Kubeconfig. It is
	// only used together with the content of Kubeconfig that it was renewed from.
	Renewed string
}

// renewed is the content of Files.Renewed, as JSON.
type renewed struct {
	// Kubeconfig is the SHA-256 of the kubeconfig that the token belongs to, in
	// hexadecimal digits.
	Kubeconfig string `json:"kubeconfig"`
	Token      string `json:"token"` // a secret
}

func digest(kubeconfig []byte) string {
	sum := sha256.Sum256(kubeconfig)
	return hex.EncodeToString(sum[:])
}

// Read returns the credential in effect: that of the kubeconfig, with the
// renewed token if that token belongs to the kubeconfig's content and expires later
// than the kubeconfig's own. The error is fs.ErrNotExist if there is no kubeconfig.
//
// A problem with the renewed token is not an error: see Info.Worthless.
func (f Files) Read() (Info, error) {
	info, _, err := f.read()
	return info, err
}

func (f Files) read() (info Info, kubeconfig []byte, err error) {
	if info, kubeconfig, err = ReadFile(f.Kubeconfig); err == nil {
		f.renew(&info, kubeconfig)
	}
	return info, kubeconfig, err
}

// renew replaces the kubeconfig's token in info with the renewed token.
func (f Files) renew(info *Info, kubeconfig []byte) {
	text, err := readSome(f.Renewed)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		info.Unread = err.Error()
		return
	}
	var r renewed
	next := Info{Kind: KindToken}
	if json.Unmarshal(text, &r) == nil {
		next.Token = r.Token
		next.token()
	}
	switch {
	case next.Token == "":
		info.Worthless = "it is not a renewed token"
	case r.Kubeconfig != digest(kubeconfig):
		info.Worthless = "it belongs to different content of " + f.Kubeconfig
	case info.Foreign != "" || next.Foreign != "" || next.User != info.User:
		info.Worthless = fmt.Sprintf("it is a token of %q, expected one of %q", next.User, info.User)
	case !next.Expires.After(info.Expires):
		info.Worthless = "it does not expire later than the token in " + f.Kubeconfig
	default:
		info.Token, info.Issued, info.Expires = next.Token, next.Issued, next.Expires
	}
}

// Stamp returns a digest that identifies the credential in effect, also that of
// an invalid kubeconfig. The error is fs.ErrNotExist if there is no kubeconfig.
func (f Files) Stamp() (stamp [sha256.Size]byte, err error) {
	text, err := readSome(f.Kubeconfig)
	if err != nil {
		return stamp, err
	}
	if info, err := inspect(f.Kubeconfig, text); err == nil {
		f.renew(&info, text)
		text = append(text, info.Token...)
	}
	return sha256.Sum256(text), nil
}

// forget removes the renewed token, if there is one.
func (f Files) forget() (removed bool, err error) {
	err = os.Remove(f.Renewed)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
