// SharedAdaptive drops another's state whose text equals one of its own last 32
import { SharedAdaptive } from '/tmp/rv/rev/build/src/proxy/upstream/shared-adaptive.js'
import { AdaptiveLimit } from '/tmp/rv/rev/build/src/proxy/upstream/adaptive-limit.js'
import { createMemoryStore } from '/tmp/rv/rev/build/src/stores/memory/store.js'
let now=0; const store=createMemoryStore({clock:{now:()=>now}})
const mk=()=>{let sh;const l=new AdaptiveLimit('adaptive',{min:.005,max:.2,start:.1,errors:.02},{now:()=>now,isShared:true,changed(){},found:x=>sh.tell(x)});sh=new SharedAdaptive(store,()=>[l]);sh.join();return{l,sh}}
const A=mk(),B=mk()
const put=(rate,c)=>store.board.setOverride({bucket:'adaptive',key:'all',endsIn:3.6e6,rate,capacity:c})
A.l.heard({rate:.2,phase:'climbing',falls:0}); A.sh.tell(A.l)        // A reaches max and tells
B.l.heard({rate:.15,phase:'climbing',falls:0}); B.sh.tell(B.l)      // B steps down (growth), tells; A follows
console.log('after step down  A',A.l.limits.rate,'B',B.l.limits.rate)
B.l.heard({rate:.2,phase:'climbing',falls:0}); B.sh.tell(B.l)       // B climbs back to max, tells
console.log('after climb back A',A.l.limits.rate,'B',B.l.limits.rate,'store',store.board.overrides()[0].rate)
