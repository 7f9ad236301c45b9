// Command csimock serves Kubernetes' mock storage driver on a unix socket.
//
//	csimock SOCKET DRIVER
package main

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: csimock SOCKET DRIVER")
		os.Exit(2)
	}
	socket, name := os.Args[1], os.Args[2]
	os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	mock := service.New(service.Config{DriverName: name, PermissiveTargetPath: true})
	servers := &driver.CSIDriverServers{Controller: mock, Identity: mock, Node: mock}
	served := driver.NewCSIDriver(servers)
	if err := served.Start(listener, nil); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	<-stop
	served.Stop()
}
