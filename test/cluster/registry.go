package cluster

import (
	"net"
	"net/http"
	"strings"
	"time"
)

// registryAddress is where an image registry listens, inside, while an image is pulled from it.
const registryAddress = "127.0.0.1:5000"

// serveImage is a registry of one image, from which a runtime pulls that cannot import archives. It ends with the returned function.
func serveImage(image Image) (stop func() error, err error) {
	manifest, blobs, err := image.content()
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", registryAddress)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/{$}", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v2/{path...}", func(w http.ResponseWriter, r *http.Request) {
		reference := r.PathValue("path")[strings.LastIndexByte(r.PathValue("path"), '/')+1:]
		if !strings.HasPrefix(reference, "sha256:") { // a tag
			reference = manifest.digest
		}
		for _, b := range blobs {
			if b.digest == reference {
				w.Header().Set("Content-Type", b.mediaType)
				w.Header().Set("Docker-Content-Digest", b.digest)
				_, _ = w.Write(b.bytes)
				return
			}
		}
		http.NotFound(w, r)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	return server.Close, nil
}
