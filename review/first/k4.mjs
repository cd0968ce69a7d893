import { simulate } from '/tmp/rv/rev/build/test/instances/simulator.js'
import { limits } from '/tmp/rv/rev/build/test/core/run.js'
import { allowedBurst } from '/tmp/rv/rev/build/test/instances/spacing.js'
// worst window located
export function worst(times,rate){times=[...times].sort((a,b)=>a-b);let best=-1e9,f,t,low=Infinity,lf;times.forEach((x,i)=>{const v=i-rate*x;if(v<low||lf===undefined){} if(lf===undefined||v<low){low=v;lf=x}const e=v+1-low;if(e>best){best=e;f=lf;t=x}});return{w:best,from:f,to:t,count:times.filter(x=>x>=f&&x<=t).length}}
const r=1000
const V={all:{on:1,join:1,hang:1,kill:1,dist:1},noHang:{on:1,join:1,kill:1,dist:1},noKill:{on:1,join:1,hang:1,dist:1},noOnOff:{join:1,hang:1,kill:1,dist:1},noJoin:{on:1,hang:1,kill:1,dist:1},near:{on:1,join:1,hang:1,kill:1},onlyHang:{hang:1},onlyOn:{on:1},onlyJoin:{join:1},onlyKill:{kill:1},hangDist:{hang:1,dist:1},onDist:{on:1,dist:1},joinDist:{join:1,dist:1},killDist:{kill:1,dist:1},joinHang:{join:1,hang:1},onHang:{on:1,hang:1}}
for(const [name,v] of Object.entries(V)){ let m={w:-1},viol=0
 for(const seed of [1,3,5,6,9,10]){
  const s=await simulate({stack:[limits(r,r*20,'everyone')],count:4,seed,distance:i=>v.dist?[0.25,20,60,2][i]:0.25,sources:[0,1,2,3].map(instance=>({instance,keys:['all'],load:{kind:'saturated',depth:125},...(v.on&&instance==1?{onOff:{on:300,off:170}}:{}),...(v.join&&instance==3?{from:1000+seed*100}:{}),...(v.hang?{hangUp:{part:.3,after:60}}:{})}))})
  await s.run(6000); if(v.kill) s.kill((seed+1)%4); await s.run(8000)
  const x=worst(s.releases.map(x=>x.at),r/1000); if(x.w>allowedBurst(r/1000,4)+1e-6)viol++
  if(x.w>m.w)m={seed,...x}
 } console.log(name.padEnd(9),'violations',viol,'of 6; worst',JSON.stringify(m),'allowed',allowedBurst(r/1000,4))
}
