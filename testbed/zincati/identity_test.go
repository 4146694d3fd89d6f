package zincati

import "testing"

func TestAppID(t *testing.T) {
	id, err := AppID("1c09ca98649c4c7abc779cd04c96812e\n")
	if want := "978a225b3d7b40e9acd7ce9b62f68444"; err != nil || id != want {
		t.Errorf("AppID = %q, %v, want %q", id, err, want)
	}
	for _, bad := range []string{"", "uninitialized", "1c09ca98649c4c7abc779cd04c96812"} {
		if id, err := AppID(bad); err == nil {
			t.Errorf("AppID(%q) = %q, want an error", bad, id)
		}
	}
}

// The ids are those of a test of Zincati's library for such ids, libsystemd.
func TestAppIDOfAnotherApplication(t *testing.T) {
	id, err := appSpecific("2e074e9b299c41a59923c51ae16f279b", "033b1b9b264441fcaa173e9e5bf35c5a")
	if want := "4d4a86c9c6644a479560ded5d19a30c5"; err != nil || id != want {
		t.Errorf("the id is %q, %v, want %q", id, err, want)
	}
}
