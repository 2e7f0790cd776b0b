// The search runs in a Worker, which browsers do not load from file://. There it runs in a hidden frame instead, so that
// the site can be searched without a server. mkdocs' offline plugin would fetch such a script from another host; it does
// not if extra.polyfills names one with "iframe-worker" in its name.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inside.document.createElement("script")
      script.src = url
      this.loaded = new Promise(resolve => script.addEventListener("load", resolve))
      this.inside = inside
      inside.document.body.append(script)
    }

    async postMessage(data) {
      await this.loaded
      this.inside.dispatchEvent(new MessageEvent("message", { data }))
    }
  }
}
