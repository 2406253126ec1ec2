// ---- download: the records travel packed, and are unpacked when asked for
{
  const button = find("#download");
  if (button && typeof DecompressionStream === "function") {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const packed = Uint8Array.from(atob(find("#csv").textContent), (c) => c.charCodeAt(0));
      const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([await new Response(stream).arrayBuffer()], { type: "text/csv" }));
      link.download = data.download;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    });
  }
}
