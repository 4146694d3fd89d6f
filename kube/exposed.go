package kube

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"k8s.io/client-go/tools/clientcmd"
)

// Exposed returns how users other than root and the user of this process can read
// or change the credential: one sentence for each file or directory, nil if they
// cannot. It checks the kubeconfig, the key and token files that the kubeconfig
// names, the renewed token, and the directories above them. It skips a file that
// does not exist or that it cannot check.
//
// It checks only the coordinator's files. The kubelet's kubeconfig belongs to
// whatever installs the kubelet, which decides who may read it. Every host would
// show a finding that no administrator of lockkeeper can fix.
func Exposed(kubeconfig, renewed string) []string {
	var found []string
	add := func(finding string) {
		if finding != "" && !slices.Contains(found, finding) {
			found = append(found, finding)
		}
	}
	for _, path := range append([]string{kubeconfig, renewed}, secretsIn(kubeconfig)...) {
		real, err := filepath.EvalSymlinks(path)
		if path == "" || err != nil {
			continue
		}
		add(exposedFile(real))
		for _, path := range append(links(path), real) {
			for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
				add(exposedDirectory(dir))
				if dir == filepath.Dir(dir) {
					break
				}
			}
		}
	}
	return found
}

// maxLinks bounds the symbolic links of one path, as Linux does.
const maxLinks = 40

// links returns the path and each path that a symbolic link in it leads to: anyone
// who can replace a link on the way can replace the file.
func links(path string) []string {
	all := []string{path}
	for len(all) <= maxLinks {
		next, linked := follow(path)
		if !linked {
			break
		}
		path = next
		all = append(all, path)
	}
	return all
}

// follow returns the path with its first symbolic link replaced by what that leads
// to; linked is false if there is none.
func follow(path string) (next string, linked bool) {
	for i := range path + "/" {
		if i == 0 || i < len(path) && path[i] != '/' {
			continue
		}
		target, err := os.Readlink(path[:i])
		if err != nil {
			continue
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path[:i]), target)
		}
		return filepath.Join(target, path[i:]), true
	}
	return path, false
}

// secretsIn returns the files with a key or a token that a kubeconfig names.
func secretsIn(kubeconfig string) []string {
	text, err := readBounded(kubeconfig)
	if err != nil {
		return nil
	}
	config, err := clientcmd.Load(text)
	if err != nil {
		return nil
	}
	for _, user := range config.AuthInfos {
		user.LocationOfOrigin = kubeconfig
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		return nil
	}
	var files []string
	for _, user := range config.AuthInfos {
		for _, path := range []string{user.ClientKey, user.TokenFile} {
			if path != "" {
				files = append(files, path)
			}
		}
	}
	slices.Sort(files)
	return files
}

func exposedFile(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	if uid, foreign := foreignOwner(info); foreign {
		return fmt.Sprintf("%s belongs to user %d, expected root: chown root %s", path, uid, path)
	}
	var can []string
	if info.Mode()&0o044 != 0 {
		can = append(can, "read")
	}
	if info.Mode()&0o022 != 0 {
		can = append(can, "change")
	}
	if len(can) == 0 {
		return ""
	}
	return fmt.Sprintf("users other than root can %s %s (mode %04o): chmod 0600 %s", strings.Join(can, " and "), path, info.Mode().Perm(), path)
}

// exposedDirectory returns who can replace files in the directory. In a directory
// with the sticky bit, such as /tmp, only the file's owner can.
func exposedDirectory(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	if uid, foreign := foreignOwner(info); foreign {
		return fmt.Sprintf("the directory %s belongs to user %d, who can replace what is in it, expected root: chown root %s", path, uid, path)
	}
	if info.Mode()&0o022 == 0 || info.Mode()&fs.ModeSticky != 0 {
		return ""
	}
	return fmt.Sprintf("users other than root can replace what is in the directory %s (mode %04o): chmod go-w %s", path, info.Mode().Perm(), path)
}

// foreignOwner reports whether a file belongs to a user other than root and the
// user of this process.
func foreignOwner(info fs.FileInfo) (uid int, foreign bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	uid = int(stat.Uid)
	return uid, uid != 0 && uid != os.Geteuid()
}
