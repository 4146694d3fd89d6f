package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The signatures are made by gpg, with a secret key of the user's own keyring (GNUPGHOME). gpg-agent asks for its passphrase.

// findKey returns the fingerprint of the one secret key that a name or fingerprint stands for.
func findKey(ctx context.Context, name string) (string, error) {
	list, err := exec.CommandContext(ctx, "gpg", "--batch", "--with-colons", "--list-secret-keys", "--", name).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("the signing key %q: gpg --list-secret-keys: %w\n%s", name, err, strings.TrimSpace(string(list)))
	}
	found, primary, fingerprint := 0, false, ""
	for line := range strings.Lines(string(list)) {
		fields := strings.Split(line, ":")
		switch {
		case fields[0] == "sec":
			found++
			primary = true
		case fields[0] == "fpr" && primary && len(fields) > 9:
			fingerprint, primary = fields[9], false
		}
	}
	if found != 1 || fingerprint == "" {
		return "", fmt.Errorf("the signing key %q: %d secret keys match, expected one; name it by its fingerprint", name, found)
	}
	return fingerprint, nil
}

// sign has gpg make a signature; how are its options.
func (b *build) sign(ctx context.Context, signature, how, file string) error {
	args := append([]string{"--batch", "--yes", "--digest-algo", "SHA256", "--local-user", b.key, "--output", signature}, strings.Fields(how)...)
	return quiet(exec.CommandContext(ctx, "gpg", append(args, file)...))
}

// signSums signs the checksums, in the form that systemd-sysupdate reads, and adds what clients need to check signatures: the key
// (lockkeeper.asc is for apt, dnf and people, lockkeeper.gpg for systemd-sysupdate), and the files for apt and dnf. None of them is
// in the checksums, so those are the same without a key.
func (b *build) signSums(ctx context.Context, made string) error {
	if b.key == "" {
		return nil
	}
	sums := filepath.Join(made, sumsFile)
	if err := b.sign(ctx, sums+".gpg", "--detach-sign", sums); err != nil {
		return err
	}
	for name, armor := range map[string]string{"lockkeeper.asc": "--armor", "lockkeeper.gpg": "--no-armor"} {
		key, err := exec.CommandContext(ctx, "gpg", "--batch", armor, "--export-options", "export-minimal", "--export", b.key).Output()
		if err != nil || len(key) == 0 {
			return fmt.Errorf("gpg --export %s: %w", b.key, err)
		}
		if err := os.WriteFile(filepath.Join(made, name), key, 0o644); err != nil {
			return err
		}
	}
	return b.clients(made)
}
