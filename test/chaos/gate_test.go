package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/test/plugintest"
)

// TestMain also runs the programs of TestGate: one that goes behind the gate, and there one that commits.
func TestMain(m *testing.M) {
	if len(os.Args) == 5 && os.Args[1] == "gated" {
		fmt.Println(runGated(os.Args[2], []string{"/proc/self/exe", "commit", os.Args[3], os.Args[4]}))
		os.Exit(1)
	}
	if len(os.Args) == 4 && os.Args[1] == "commit" {
		fmt.Print(commit(os.Args[2], os.Args[3]))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func commit(path, key string) error {
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		return err
	}
	defer db.Close()
	return db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucket([]byte(key))
		return err
	})
}

// A commit whose first sync fails has not happened, and one whose second sync fails is in the file all the same.
func TestGate_FailedSyncs_OfTheDataAndOfTheMetaPage(t *testing.T) {
	plugintest.NeedRoot(t)
	dir := t.TempDir()
	path, socket := filepath.Join(dir, "file"), filepath.Join(dir, "gate")
	g, err := newGate(socket, path)
	if err != nil {
		t.Fatal(err)
	}
	defer g.listener.Close()
	if err := commit(path, "first"); err != nil { // a new file is synced in another way
		t.Fatal(err)
	}
	for _, test := range []struct {
		key        string
		data, meta int
		says       string
		is         bool
	}{
		{"well", 0, 0, "<nil>", true},
		{"data", 1, 0, "input/output error", false},
		{"meta", 0, 1, "input/output error", true},
	} {
		g.breaks(false, test.data)
		g.breaks(true, test.meta)
		out, err := exec.Command("/proc/self/exe", "gated", socket, path, test.key).CombinedOutput()
		if err != nil || string(out) != test.says {
			t.Errorf("%s: %q, %v; want %q", test.key, out, err, test.says)
		}
		if data, meta := g.repair(); data != test.data || meta != test.meta {
			t.Errorf("%s: %d syncs of data and %d of a meta page have failed, want %d and %d", test.key, data, meta, test.data, test.meta)
		}
		db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := db.View(func(tx *bolt.Tx) error {
			if is := tx.Bucket([]byte(test.key)) != nil; is != test.is {
				t.Errorf("%s: in the file: %v, want %v", test.key, is, test.is)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}
