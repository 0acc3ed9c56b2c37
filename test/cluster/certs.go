package cluster

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
	"os"
	"path/filepath"
	"time"
)

// pki holds the files of one cluster's keys. They are recreated for each, and cheaply.
type pki struct {
	caFile                    string
	serverFile, serverKey     string // for the API server and the kubelet
	accountKey, accountPublic string // for service account tokens
}

// pkiIn names the files in a directory.
func pkiIn(dir string) pki {
	return pki{
		caFile:        filepath.Join(dir, "ca.crt"),
		serverFile:    filepath.Join(dir, "server.crt"),
		serverKey:     filepath.Join(dir, "server.key"),
		accountKey:    filepath.Join(dir, "sa.key"),
		accountPublic: filepath.Join(dir, "sa.pub"),
	}
}

func newPKI(dir string) (pki, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return pki{}, err
	}
	p := pkiIn(dir)
	if err := p.write(); err != nil {
		return pki{}, fmt.Errorf("make the cluster's keys: %w", err)
	}
	return p, nil
}

func (p pki) write() error {
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "devmgrd test cluster"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(0, 1, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caKey, err := newKey("")
	if err != nil {
		return err
	}
	if err := writeCertificate(p.caFile, ca, ca, caKey, caKey); err != nil {
		return err
	}

	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: NodeName},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", NodeName},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(nodeAddress), net.ParseIP(MachineAddress), net.IPv4(10, 96, 0, 1)},
	}
	serverKey, err := newKey(p.serverKey)
	if err != nil {
		return err
	}
	if err := writeCertificate(p.serverFile, server, ca, serverKey, caKey); err != nil {
		return err
	}

	accountKey, err := newKey(p.accountKey)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(accountKey.Public())
	if err != nil {
		return err
	}
	return writePEM(p.accountPublic, "PUBLIC KEY", public)
}

// newKey makes a key and writes it to a file, unless that is "".
func newKey(file string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil || file == "" {
		return key, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, writePEM(file, "EC PRIVATE KEY", der)
}

func writeCertificate(file string, c, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) error {
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), parentKey)
	if err != nil {
		return err
	}
	return writePEM(file, "CERTIFICATE", der)
}

func writePEM(file, kind string, der []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
