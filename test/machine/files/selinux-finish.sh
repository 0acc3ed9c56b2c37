# Adds the policy's modules for containers and for this node, and labels the file system.
cd /root/policy
tar --extract --file /usr/src/selinux-policy-src.tar.zst --strip-components 4 \
	selinux-policy-src/policy/modules/services/{container,docker}.{te,fc}
make -f /usr/share/selinux/devel/Makefile NAME=default container.pp docker.pp node.pp
semodule --noreload --install container.pp --install docker.pp --install node.pp
cd /
rm -r /root/policy
mkdir -p /var/lib/kubelet/pods /var/log/pods /var/log/containers # their content gets their labels
mount -t proc proc /proc # setfiles works by descriptors
setfiles -F -m -e /proc /etc/selinux/default/contexts/files/file_contexts /
